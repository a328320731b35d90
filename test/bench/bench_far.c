/* What keys cost: a batch of one request from each of ten clients, over a unix socket, over tcp, and over tcp
 * with CURVE, as between hosts. All processes are on this machine.
 *
 * A server and its clients, a process each. A client calls METHOD_STEP with one tensor, waits for the answer,
 * which is the same tensor, and calls again; the server answers when it has a call from every client. The
 * three ways alternate. Printed are medians of REPEATS runs: µs per batch with minimum and maximum, µs of
 * processor time per call over all processes, and the median and quartiles of the runs' ratios to tcp. The
 * parent process has no ZeroMQ; it starts each client with one byte. */
#include "test/worker/net/net_connect.h"
#include "worker/net/rpc.h"

#include <netinet/in.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLIENTS = 10, REPEATS = 15, FLOATS_MAX = 1 << 14, SIZES = 3, HOSTS = 2 };
enum way { IPC, TCP, CURVE, WAYS };

static const char *const names[WAYS] = {"ipc", "tcp", "CURVE"};
static const struct size {
    uint32_t floats;
    unsigned batches; /* of a run */
} sizes[SIZES] = {{4, 1000}, {1024, 600}, {FLOATS_MAX, 60}};

static void expect(bool holds, const char *what)
{
    if (holds)
        return;
    perror(what);
    exit(EXIT_FAILURE);
}

static void expect_ok(enum status status, const struct error *error)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "%s\n", error->text);
    exit(EXIT_FAILURE);
}

/* ---- the two ends ---- */

struct gathering {
    unsigned count;
    struct rpc_request *requests[CLIENTS];
};

static void gather(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct gathering *gathering = context;
    (void)message;
    gathering->requests[gathering->count++] = request;
    if (gathering->count < CLIENTS)
        return;
    for (unsigned i = 0; i < CLIENTS; i++)
        rpc_reply(gathering->requests[i], rpc_request_message(gathering->requests[i]));
    gathering->count = 0;
}

static const struct rpc_method methods[] = {{.method = METHOD_STEP,
                                             .callers = WIRE_ROLE_OBSERVER,
                                             .dtype = WIRE_F32,
                                             .elements_max = FLOATS_MAX,
                                             .handler = gather}};

static const uint8_t roster[1 + CLIENTS] = {WIRE_ROLE_AGENT,    WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER,
                                            WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER,
                                            WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER,
                                            WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER};

static struct host_keys keys_of(uint16_t host)
{
    static const uint8_t shared[HOST_KEY_BYTES] = "the hosts of a benchmark";
    struct host_keys keys;
    expect(sodium_init() >= 0, "sodium_init");
    host_keys_derive(&keys, shared, host, HOSTS);
    return keys;
}

static struct rpc_config config_of(uint16_t worker)
{
    return (struct rpc_config){
        .worker = worker,
        .role = roster[worker],
        .roster = roster,
        .workers = sizeof roster,
        .pending_max = 64,
        .incoming_max = 64,
    };
}

static void nothing_to_read(void *arg)
{
    (void)arg;
    exit(EXIT_SUCCESS);
}

static _Noreturn void run_server(enum way way, const char *address, int parent_fd)
{
    struct gathering gathering = {.count = 0};
    const struct host_keys keys = keys_of(HOST_LEADER);
    int16_t host_of_worker[1 + CLIENTS];
    struct rpc_config config = config_of(0);
    struct error error = {0};
    struct rpc *rpc;
    for (unsigned i = 0; i <= CLIENTS; i++)
        host_of_worker[i] = 1;
    config.methods = methods;
    config.method_count = 1;
    config.context = &gathering;
    if (way == CURVE) {
        config.keys = &keys;
        config.host_of_worker = host_of_worker;
        config.far_address = address;
    }
    expect_ok(rpc_open(&rpc, &config, way == CURVE ? NULL : address, &error), &error);
    rpc_watch(rpc, parent_fd, nothing_to_read, NULL);
    for (;;)
        rpc_turn(rpc, MONOTIME_NEVER);
}

/* A client writes a byte when it is ready and one when it is done, and starts when it reads one between. */
static _Noreturn void run_client(enum way way, const char *address, const struct size *size, uint16_t worker,
                                 int in, int out)
{
    static float floats[FLOATS_MAX];
    const struct host_keys keys = keys_of(1);
    const struct rpc_message message = {
        .tensor_count = 1, .tensors = {{WIRE_F32, 1, .dims = {size->floats}}}, .data = {floats}};
    const struct rpc_address server = {.worker = 0, .address = address, .is_far = way == CURVE};
    struct rpc_config config = config_of(worker);
    struct error error = {0};
    struct rpc *rpc;
    char byte = 0;
    config.keys = &keys;
    expect_ok(net_connect(&rpc, &config, &server, 1, monotime_add_us(monotime_now(), 10000000), &error),
              &error);
    expect(write(out, &byte, 1) == 1 && read(in, &byte, 1) == 1, "start");
    for (unsigned i = 0; i < size->batches; i++) {
        struct future *future;
        expect_ok(rpc_call(rpc, 0, METHOD_STEP, &message, MONOTIME_NEVER, &future, &error), &error);
        future_release(future);
    }
    expect(write(out, &byte, 1) == 1, "end");
    for (;;)
        pause();
}

/* ---- processes ---- */

struct process {
    pid_t pid;
    int to, from;
};

static struct process start(enum way way, const char *address, const struct size *size, uint16_t worker)
{
    int to[2], from[2];
    expect(pipe(to) == 0 && pipe(from) == 0, "pipe");
    fflush(stdout);
    const pid_t parent = getpid(), pid = fork();
    expect(pid >= 0, "fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(EXIT_FAILURE);
        close(to[1]);
        close(from[0]);
        if (worker == 0)
            run_server(way, address, to[0]);
        run_client(way, address, size, worker, to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    return (struct process){pid, to[1], from[0]};
}

static void await_all(const struct process *clients)
{
    char byte;
    for (unsigned i = 0; i < CLIENTS; i++)
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

static uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    expect(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
               getsockname(fd, (struct sockaddr *)&address, &bytes) == 0,
           "a free port");
    close(fd);
    return ntohs(address.sin_port);
}

/* Seconds for the batches of a run. */
static double run(enum way way, const struct size *size, double *cpu_seconds)
{
    char folder[] = "/tmp/bench-far-XXXXXX", address[64];
    struct process clients[CLIENTS];
    expect(mkdtemp(folder) != NULL, "mkdtemp");
    if (way == IPC)
        snprintf(address, sizeof address, "ipc://%s/server", folder);
    else
        snprintf(address, sizeof address, "tcp://127.0.0.1:%u", free_port());
    const struct process server = start(way, address, size, 0);
    for (unsigned i = 0; i < CLIENTS; i++)
        clients[i] = start(way, address, size, (uint16_t)(i + 1));
    await_all(clients);
    const struct monotime began = monotime_now();
    for (unsigned i = 0; i < CLIENTS; i++)
        expect(write(clients[i].to, "", 1) == 1, "a client ended");
    await_all(clients);
    const double seconds = (double)(monotime_now().ns - began.ns) * 1e-9;
    *cpu_seconds = stop(&server);
    for (unsigned i = 0; i < CLIENTS; i++)
        *cpu_seconds += stop(&clients[i]);
    unlink(address + strlen("ipc://"));
    rmdir(folder);
    return seconds;
}

/* ---- the table ---- */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const struct size *size)
{
    enum { MIDDLE = REPEATS / 2 };
    double seconds[WAYS][REPEATS], cpu_seconds[WAYS][REPEATS], ratios[WAYS][REPEATS];
    for (unsigned i = 0; i < REPEATS; i++) {
        for (unsigned j = 0; j < WAYS; j++) {
            const enum way way = (enum way)((i + j) % WAYS);
            seconds[way][i] = run(way, size, &cpu_seconds[way][i]);
        }
        for (unsigned way = 0; way < WAYS; way++)
            ratios[way][i] = seconds[way][i] / seconds[TCP][i];
    }
    for (unsigned way = 0; way < WAYS; way++) {
        const double us = 1e6 / size->batches;
        qsort(seconds[way], REPEATS, sizeof(double), ascending);
        qsort(cpu_seconds[way], REPEATS, sizeof(double), ascending);
        qsort(ratios[way], REPEATS, sizeof(double), ascending);
        printf("%7zu %-6s %8.1f %8.1f %8.1f %7.1f   %.2f (%.2f..%.2f)\n", size->floats * sizeof(float),
               names[way], seconds[way][MIDDLE] * us, seconds[way][0] * us, seconds[way][REPEATS - 1] * us,
               cpu_seconds[way][MIDDLE] * us / CLIENTS, ratios[way][MIDDLE], ratios[way][REPEATS / 4],
               ratios[way][REPEATS * 3 / 4]);
    }
    fflush(stdout);
}

int main(void)
{
    printf("%ld cores, %d clients, %d runs each; a batch is one call of every client\n",
           sysconf(_SC_NPROCESSORS_ONLN), CLIENTS, REPEATS);
    printf("  bytes way    us/batch      min      max   cpu/c   time / tcp (quartiles)\n");
    for (unsigned i = 0; i < SIZES; i++)
        measure(&sizes[i]);
    return EXIT_SUCCESS;
}
