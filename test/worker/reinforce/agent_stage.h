/* A stage for tests of the agent: the agent is the real binary, and the test stands in for its supervisor and
 * its observers. */
#ifndef TEST_WORKER_REINFORCE_AGENT_STAGE_H
#define TEST_WORKER_REINFORCE_AGENT_STAGE_H

#include "test/worker/bare_worker.h"
#include "test/worker/net/net_connect.h"
#include "test/workplace.h"
#include "worker/net/rpc.h"
#include "worker/worker.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ENVIRONMENTS = 3, STEPS = 5 };

#define JOB                                                                                                  \
    "{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":%u,\"environments\":3},"            \
    "\"rollout\":{\"mode\":\"%s\",\"steps\":5},\"stop\":{\"episodes\":%u}}"

#define CARTPOLE_TEXT                                                                                        \
    "{\"name\":\"CartPole-v1\",\"agents\":1,\"steps_max\":500,\"mask\":false,\"can_seed\":true, "            \
    "\"can_save\":true,\"singleton\":false,\"metrics\":[],\"observation\":{\"dtype\":\"float32\",\"shape\":" \
    "[4]},"                                                                                                  \
    "\"action\":{\"dtype\":\"int32\",\"shape\":[],\"choices\":2}}"

static char text_of_cartpole[sizeof CARTPOLE_TEXT];

static char folder[64];
static struct bare_worker agent;
static uint32_t agent_workers;
static struct rpc *rpc;
static struct rpc *second;         /* of an observer that only joins */
static struct rpc_request *called; /* run_episode */
static float shown;                /* what good rows show beside what their places give */
static uint64_t episode, begins;   /* its number, and how its environments begin (enum in step_message.h) */
static char states[64];            /* that came with it */
static uint32_t state_bytes;

/* One step's rows, as a well-behaved observer would send them. */
static struct rows {
    uint64_t args[WIRE_ARGS];
    uint32_t count;
    uint32_t environments[ENVIRONMENTS];
    float observations[4 * 2 * ENVIRONMENTS], rewards[ENVIRONMENTS]; /* with room for the last ones */
    uint8_t flags[ENVIRONMENTS];
} rows;

static inline void run_episode(void *context, struct rpc_request *request, const struct rpc_message *call)
{
    (void)context;
    called = request;
    episode = call->args[0];
    begins = call->args[2];
    state_bytes = call->tensor_count > 0 ? call->tensors[0].dims[0] : 0;
    ck_assert_uint_le(state_bytes, sizeof states);
    if (state_bytes > 0)
        memcpy(states, call->data[0], state_bytes);
}

static const struct rpc_method methods[] = {
    {.method = METHOD_RUN_EPISODE, .callers = WIRE_ROLE_AGENT, .any_tensors = true, .handler = run_episode}};

static inline void start_agent_for(const char *mode, unsigned observers, unsigned episodes)
{
    char job[512];
    agent_workers = 1 + observers;
    agent.start = (struct control_start){.role = WIRE_ROLE_AGENT, .incarnation = 1, .generation = 1};
    snprintf(agent.start.address, sizeof agent.start.address, "ipc://%s/agent.sock", folder);
    snprintf(agent.start.run_dir, sizeof agent.start.run_dir, "%s", folder);
    snprintf(job, sizeof job, JOB, observers, mode, episodes);
    bare_worker_start(&agent, "agent", job);
}

static inline void start_agent(const char *mode)
{
    start_agent_for(mode, 1, 2);
}

static inline void setup(void)
{
    folder_make(folder);
    memcpy(text_of_cartpole, CARTPOLE_TEXT, sizeof CARTPOLE_TEXT);
    shown = 0;
    called = NULL;
}

static inline void teardown(void)
{
    rpc_free(rpc, "the test is over", 0);
    rpc_free(second, "the test is over", 0);
    rpc = second = NULL;
    bare_worker_kill(&agent);
    folder_remove(folder);
}

static inline void wait_for_call(void)
{
    struct monotime until = monotime_add_us(monotime_now(), 20000000);
    while (called == NULL && monotime_before(monotime_now(), until))
        ck_assert_int_eq(rpc_turn(rpc, until), STATUS_OK);
    ck_assert_ptr_nonnull(called);
}

/* Tells the agent what the environment is. */
static inline enum status describe(struct rpc *from, const char *text, struct error *error)
{
    const struct rpc_message message = {
        .tensor_count = 1,
        .tensors = {{.dtype = WIRE_U8, .rank = 1, .dims = {(uint32_t)strlen(text)}}},
        .data = {text}};
    struct future *answer = NULL;
    const enum status status = rpc_call(from, 0, METHOD_DESCRIBE, &message,
                                        monotime_add_us(monotime_now(), 20000000), &answer, error);
    future_release(answer);
    return status;
}

static inline void connect_as(struct rpc **joined, uint16_t worker, uint32_t incarnation)
{
    static const uint8_t roster[] = {WIRE_ROLE_AGENT, WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER};
    char address[CONTROL_ADDRESS_BYTES + 8];
    bare_worker_address(&agent, address);
    struct rpc_address server = {.worker = 0, .address = address};
    struct rpc_config config = {.worker = worker,
                                .role = WIRE_ROLE_OBSERVER,
                                .incarnation = incarnation,
                                .generation = 1,
                                .roster = roster,
                                .workers = agent_workers,
                                .pending_max = 4,
                                .incoming_max = 4,
                                .methods = methods,
                                .method_count = 1};
    struct error error;
    enum status status =
        net_connect(joined, &config, &server, 1, monotime_add_us(monotime_now(), 20000000), &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static inline void join_as(struct rpc **joined, uint16_t worker, uint32_t incarnation)
{
    struct error error;
    connect_as(joined, worker, incarnation);
    const enum status status = describe(*joined, text_of_cartpole, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static inline void join(void)
{
    bare_worker_expect(&agent, CONTROL_BOUND);
    join_as(&rpc, 1, 1);
    bare_worker_expect(&agent, CONTROL_READY);
}

/* The observer dies without a word. */
static inline void end_observer(uint32_t incarnation)
{
    struct control_died died = {.worker = 1, .incarnation = incarnation, .text = "the test says so"};
    ck_assert_int_eq(control_send(agent.control, CONTROL_DIED, &died, sizeof died), STATUS_OK);
    rpc_free(rpc, "the test says so", 0);
    rpc = NULL;
    called = NULL;
}

/* The observer dies; its successor joins, and is asked to play the same episode. */
static inline void replace_observer(uint32_t successor)
{
    const uint64_t running = episode;
    end_observer(successor - 1);
    join_as(&rpc, 1, successor);
    wait_for_call();
    ck_assert_uint_eq(episode, running);
}

static inline void good_rows(uint64_t step)
{
    rows = (struct rows){.args = {episode, step}, .count = ENVIRONMENTS};
    for (uint32_t i = 0; i < ENVIRONMENTS; i++) {
        rows.environments[i] = i;
        rows.rewards[i] = step > 0 ? 1 : 0;
        for (uint32_t j = 0; j < 4; j++)
            rows.observations[4 * i + j] = shown + 0.01f * (float)(step + i + j);
    }
}

/* Sends `rows`, with a last observation for each row whose flags tell of an end. The caller releases the
 * future. */
static inline struct future *send_step(void)
{
    uint32_t ended = 0;
    for (uint32_t i = 0; i < rows.count; i++)
        ended += rows.flags[i] == 1 || rows.flags[i] == 2;
    struct rpc_message request = {.tensor_count = 4,
                                  .tensors = {{.dtype = WIRE_U32, .rank = 1, .dims = {rows.count}},
                                              {.dtype = WIRE_F32, .rank = 2, .dims = {rows.count + ended, 4}},
                                              {.dtype = WIRE_F32, .rank = 1, .dims = {rows.count}},
                                              {.dtype = WIRE_U8, .rank = 2, .dims = {rows.count, 1}}},
                                  .data = {rows.environments, rows.observations, rows.rewards, rows.flags}};
    struct future *answer = NULL;
    struct error error = {0};
    memcpy(request.args, rows.args, sizeof request.args);
    rpc_call_async(rpc, 0, METHOD_STEP, &request, monotime_add_us(monotime_now(), 20000000), &answer, &error);
    return answer;
}

/* Sends `rows`; the answer's status, its actions into `actions`, its error into `error`. */
static inline enum status step(uint32_t actions[ENVIRONMENTS], struct error *error)
{
    struct future *answer = send_step();
    if (answer == NULL)
        return STATUS_PEER_DIED;
    enum status status = rpc_wait(rpc, answer, error);
    if (status != STATUS_OK) {
        future_release(answer);
        return status;
    }
    const struct rpc_message *value = future_value(answer);
    ck_assert_uint_eq(value->tensor_count, 1);
    ck_assert_uint_eq(value->tensors[0].dims[0], rows.count);
    memcpy(actions, value->data[0], rows.count * sizeof *actions);
    future_release(answer);
    return STATUS_OK;
}

static inline void play_steps(uint64_t from, uint64_t to)
{
    uint32_t actions[ENVIRONMENTS];
    struct error error = {0};
    for (uint64_t i = from; i < to; i++) {
        good_rows(i);
        enum status status = step(actions, &error);
        ck_assert_msg(status == STATUS_OK, "step %d: %s", (int)i, error.text);
        for (uint32_t e = 0; e < rows.count; e++)
            ck_assert_uint_le(actions[e], 1);
    }
}

/* With `saved`, of `bytes`, unless these are 0. */
static inline void answer_with_states(const float *rewards, const uint8_t *flags, const uint32_t *steps,
                                      const void *saved, uint32_t bytes)
{
    struct rpc_message value = {.tensor_count = bytes > 0 ? 4 : 3,
                                .tensors = {{.dtype = WIRE_F32, .rank = 1, .dims = {ENVIRONMENTS}},
                                            {.dtype = WIRE_U8, .rank = 1, .dims = {ENVIRONMENTS}},
                                            {.dtype = WIRE_U32, .rank = 1, .dims = {ENVIRONMENTS}}},
                                .data = {rewards, flags, steps}};
    if (bytes > 0) {
        value.tensors[3] = (struct wire_tensor){.dtype = WIRE_U8, .rank = 1, .dims = {bytes}};
        value.data[3] = saved;
    }
    rpc_reply(called, &value);
    called = NULL;
    for (int i = 0; i < 3; i++)
        rpc_turn(rpc, (struct monotime){1});
}

static inline void answer_episode(const float *rewards, const uint8_t *flags, const uint32_t *steps)
{
    answer_with_states(rewards, flags, steps, NULL, 0);
}

static inline void expect_no_session(void)
{
    struct monotime until = monotime_add_us(monotime_now(), 20000000);
    while (!rpc_is_gone(rpc, 0) && monotime_before(monotime_now(), until))
        rpc_turn(rpc, until);
    ck_assert(rpc_is_gone(rpc, 0));
}

static const float ones[] = {1, 1, 1};
static const uint32_t five[] = {STEPS, STEPS, STEPS};

/* ---- rows that are wrong ---- */

static inline void too_few_rows(void)
{
    rows.count = 2;
}
static inline void unordered_environments(void)
{
    rows.environments[0] = 1;
    rows.environments[1] = 0;
}

#endif
