/* The cost of the RPC layer over bare ZeroMQ: the same exchange, the same frames, the same number of
 * processes.
 *
 * A server and its clients, a process each, over ipc. A message has two frames of the RPC layer's sizes: a
 * header and 16 bytes (four floats). A client calls, waits for the answer, and calls again.
 *   each     the server answers every call at once
 *   barrier  the server answers when it has a call from every client
 * Bare ZeroMQ uses blocking receives and ignores the bytes; ours is METHOD_ECHO and METHOD_STEP through
 * rpc_call, with a watch as a role has it. Runs of the two alternate. Printed are medians of REPEATS runs:
 * calls per second of all clients, µs per round with minimum and maximum, µs of processor time per call over
 * all processes, and the median and quartiles of the runs' ratios. The parent process has no ZeroMQ; it
 * starts each client with one byte. */
#include "test/worker/net/net_connect.h"
#include "worker/net/rpc.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

enum { CLIENTS_MAX = 10, REPEATS = 15, RUN_CALLS = 6000, PAYLOAD_BYTES = 16, CASES = 6 };

enum side { BARE, OURS };
struct bench_case {
    unsigned clients;
    bool is_barrier;
};

static const struct bench_case cases[CASES] = {{1, false}, {4, false}, {10, false},
                                               {1, true},  {4, true},  {10, true}};

static void die(const char *what)
{
    perror(what);
    exit(EXIT_FAILURE);
}

static void expect(bool holds, const char *what)
{
    if (!holds)
        die(what);
}

/* ---- bare ZeroMQ ---- */

static void bare_send(void *socket, const void *id, size_t id_bytes)
{
    uint8_t header[WIRE_HEADER_BYTES] = {0}, payload[PAYLOAD_BYTES] = {0};
    if (id != NULL)
        expect(zmq_send(socket, id, id_bytes, ZMQ_SNDMORE) >= 0, "bare send");
    expect(zmq_send(socket, header, sizeof header, ZMQ_SNDMORE) >= 0, "bare send");
    expect(zmq_send(socket, payload, sizeof payload, 0) >= 0, "bare send");
}

static void bare_receive(void *socket, zmq_msg_t *id)
{
    zmq_msg_t frames[2];
    if (id != NULL)
        expect(zmq_msg_recv(id, socket, 0) >= 0, "bare receive");
    for (unsigned i = 0; i < 2; i++) {
        zmq_msg_init(&frames[i]);
        expect(zmq_msg_recv(&frames[i], socket, 0) >= 0, "bare receive");
        zmq_msg_close(&frames[i]);
    }
}

static void bare_server(const struct bench_case *bench, const char *address)
{
    void *socket = zmq_socket(zmq_ctx_new(), ZMQ_ROUTER);
    expect(socket != NULL && zmq_bind(socket, address) == 0, "bare bind");
    zmq_msg_t ids[CLIENTS_MAX];
    unsigned batch = bench->is_barrier ? bench->clients : 1;
    for (;;) {
        for (unsigned i = 0; i < batch; i++) {
            zmq_msg_init(&ids[i]);
            bare_receive(socket, &ids[i]);
        }
        for (unsigned i = 0; i < batch; i++) {
            bare_send(socket, zmq_msg_data(&ids[i]), zmq_msg_size(&ids[i]));
            zmq_msg_close(&ids[i]);
        }
    }
}

static void bare_call(void *socket)
{
    bare_send(socket, NULL, 0);
    bare_receive(socket, NULL);
}

/* ---- ours ---- */

struct gathering {
    unsigned wanted, count;
    struct rpc_request *requests[CLIENTS_MAX];
};

static void gather(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct gathering *gathering = context;
    (void)message;
    gathering->requests[gathering->count++] = request;
    if (gathering->count < gathering->wanted)
        return;
    for (unsigned i = 0; i < gathering->count; i++)
        rpc_reply(gathering->requests[i], rpc_request_message(gathering->requests[i]));
    gathering->count = 0;
}

static const struct rpc_method methods[] = {{.method = METHOD_STEP,
                                             .callers = WIRE_ROLE_OBSERVER,
                                             .dtype = WIRE_F32,
                                             .elements_max = 4,
                                             .handler = gather}};

static void nothing_to_read(void *arg)
{
    (void)arg;
    exit(EXIT_SUCCESS);
}

/* One agent and its observers; their number does not matter. */
static const uint8_t roster[] = {WIRE_ROLE_AGENT,    WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER,
                                 WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER,
                                 WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER,
                                 WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER};

static void our_server(const struct bench_case *bench, const char *address, int parent_fd)
{
    struct gathering gathering = {.wanted = bench->clients};
    struct rpc_config config = {.role = WIRE_ROLE_AGENT,
                                .roster = roster,
                                .workers = bench->clients + 1,
                                .pending_max = 64,
                                .incoming_max = 64,
                                .methods = methods,
                                .method_count = 1,
                                .context = &gathering};
    struct rpc *rpc;
    struct error error = {0};
    if (rpc_open(&rpc, &config, address, &error) != STATUS_OK)
        die(error.text);
    rpc_watch(rpc, parent_fd, nothing_to_read, NULL);
    for (;;)
        rpc_turn(rpc, MONOTIME_NEVER);
}

static struct rpc *our_join(uint16_t worker, const char *address, int parent_fd)
{
    struct rpc_config config = {
        .worker = worker,
        .role = WIRE_ROLE_OBSERVER,
        .roster = roster,
        .workers = sizeof roster,
        .pending_max = 64,
        .incoming_max = 64,
    };
    struct rpc_address server = {.worker = 0, .address = address};
    struct rpc *rpc;
    struct error error = {0};
    if (net_connect(&rpc, &config, &server, 1, monotime_add_us(monotime_now(), 10000000), &error) !=
        STATUS_OK)
        die(error.text);
    rpc_watch(rpc, parent_fd, nothing_to_read, NULL);
    return rpc;
}

static void our_call(struct rpc *rpc, enum wire_method method)
{
    float floats[4] = {0};
    struct rpc_message message = {
        .tensor_count = 1, .tensors = {{WIRE_F32, 1, .dims = {4}}}, .data = {floats}};
    struct future *future;
    struct error error = {0};
    if (rpc_call(rpc, 0, method, &message, MONOTIME_NEVER, &future, &error) != STATUS_OK)
        die(error.text);
    future_release(future);
}

/* ---- processes ---- */

struct process {
    pid_t pid;
    int to, from;
};

/* A client writes a byte when it is ready and one when it is done, and starts when it reads one between. */
static void run_client(enum side side, const struct bench_case *bench, const char *address, uint16_t worker,
                       int in, int out)
{
    char byte = 0;
    unsigned calls = RUN_CALLS / bench->clients;
    enum wire_method method = bench->is_barrier ? METHOD_STEP : METHOD_ECHO;
    int quiet[2];
    expect(pipe(quiet) == 0, "pipe");
    struct rpc *rpc = side == OURS ? our_join(worker, address, quiet[0]) : NULL;
    void *socket = side == BARE ? zmq_socket(zmq_ctx_new(), ZMQ_DEALER) : NULL;
    expect(side == OURS || zmq_connect(socket, address) == 0, "bare connect");
    expect(write(out, &byte, 1) == 1 && read(in, &byte, 1) == 1, "start");
    for (unsigned i = 0; i < calls; i++)
        if (side == OURS)
            our_call(rpc, method);
        else
            bare_call(socket);
    expect(write(out, &byte, 1) == 1, "end");
    pause();
}

static struct process start(enum side side, const struct bench_case *bench, const char *address,
                            uint16_t worker)
{
    int to[2], from[2];
    expect(pipe(to) == 0 && pipe(from) == 0, "pipe");
    fflush(stdout);
    pid_t parent = getpid(), pid = fork();
    expect(pid >= 0, "fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(EXIT_FAILURE);
        close(to[1]);
        close(from[0]);
        if (worker > 0)
            run_client(side, bench, address, worker, to[0], from[1]);
        else if (side == OURS)
            our_server(bench, address, to[0]);
        else
            bare_server(bench, address);
        _exit(EXIT_SUCCESS);
    }
    close(to[0]);
    close(from[1]);
    return (struct process){pid, to[1], from[0]};
}

static void await_all(const struct process *clients, unsigned count)
{
    char byte;
    for (unsigned i = 0; i < count; i++)
        expect(read(clients[i].from, &byte, 1) == 1, "a client ended");
}

/* Returns the process's processor time in seconds, its start included. */
static double stop(const struct process *process)
{
    struct rusage used;
    kill(process->pid, SIGKILL);
    wait4(process->pid, NULL, 0, &used);
    close(process->to);
    close(process->from);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* Seconds for RUN_CALLS calls, all clients together. */
static double run(enum side side, const struct bench_case *bench, double *cpu_seconds)
{
    char folder[] = "/tmp/bench-rpc-XXXXXX", address[64];
    expect(mkdtemp(folder) != NULL, "mkdtemp");
    snprintf(address, sizeof address, "ipc://%s/server", folder);
    struct process server = start(side, bench, address, 0), clients[CLIENTS_MAX];
    for (unsigned i = 0; i < bench->clients; i++)
        clients[i] = start(side, bench, address, (uint16_t)(i + 1));
    await_all(clients, bench->clients);
    struct monotime began = monotime_now();
    for (unsigned i = 0; i < bench->clients; i++)
        expect(write(clients[i].to, "", 1) == 1, "a client ended");
    await_all(clients, bench->clients);
    double seconds = (double)(monotime_now().ns - began.ns) * 1e-9;
    *cpu_seconds = stop(&server);
    for (unsigned i = 0; i < bench->clients; i++)
        *cpu_seconds += stop(&clients[i]);
    unlink(address + strlen("ipc://"));
    rmdir(folder);
    return seconds;
}

/* ---- the table ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_side(const struct bench_case *bench, double *seconds, double *cpu_seconds)
{
    unsigned calls = RUN_CALLS / bench->clients * bench->clients, middle = REPEATS / 2;
    double us_per_round = 1e6 * bench->clients / calls;
    qsort(seconds, REPEATS, sizeof *seconds, ascending);
    qsort(cpu_seconds, REPEATS, sizeof *cpu_seconds, ascending);
    printf(" | %7.0f %7.1f %6.1f %7.1f %5.1f", calls / seconds[middle], seconds[middle] * us_per_round,
           seconds[0] * us_per_round, seconds[REPEATS - 1] * us_per_round, cpu_seconds[middle] * 1e6 / calls);
}

static void measure(const struct bench_case *bench)
{
    double seconds[2][REPEATS], cpu_seconds[2][REPEATS], ratios[REPEATS];
    for (unsigned i = 0; i < REPEATS; i++) {
        for (unsigned j = 0; j < 2; j++) {
            enum side side = (i + j) % 2 == 0 ? BARE : OURS;
            seconds[side][i] = run(side, bench, &cpu_seconds[side][i]);
        }
        ratios[i] = seconds[OURS][i] / seconds[BARE][i];
    }
    qsort(ratios, REPEATS, sizeof *ratios, ascending);
    printf("%7u %-7s", bench->clients, bench->is_barrier ? "barrier" : "each");
    print_side(bench, seconds[BARE], cpu_seconds[BARE]);
    print_side(bench, seconds[OURS], cpu_seconds[OURS]);
    double cpu_ratio = cpu_seconds[OURS][REPEATS / 2] / cpu_seconds[BARE][REPEATS / 2];
    printf(" | %.2f (%.2f..%.2f) %.2f\n", ratios[REPEATS / 2], ratios[REPEATS / 4], ratios[REPEATS * 3 / 4],
           cpu_ratio);
    fflush(stdout);
}

int main(void)
{
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    printf("ZeroMQ %d.%d.%d, %ld cores, %d calls a run, %d runs each; a round is one call of every client\n",
           major, minor, patch, sysconf(_SC_NPROCESSORS_ONLN), RUN_CALLS, REPEATS);
    static const char columns[] = "calls/s   us/round   min     max cpu/c";
    printf("%-15s | %-36s | %-36s | ours / bare: time (quartiles), cpu\n", "clients answers", columns,
           columns);
    for (unsigned i = 0; i < CASES; i++)
        measure(&cases[i]);
    return EXIT_SUCCESS;
}
