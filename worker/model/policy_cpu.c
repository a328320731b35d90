/* A policy on the CPU without a backend: flat arrays of parameters, a kernel over the rows, the steps of
 * REINFORCE and of PPO, Adam.
 *
 * A policy with memory learns a minibatch in three passes: each memory forward through time; the dense
 * layers, chunk by chunk, by the memories' features; and each memory back through time, by what the dense
 * layers pull at the features.
 *
 * The kernel is the fused one of the tutorial's network (kernels/policy/mlp.h) or that of dense layers
 * (kernels/policy/dense.h). Rows are learned from in chunks. Each chunk's gradient is summed by itself, and
 * the chunks' sums are added in their order: the same bits whatever thread computes a chunk. */
#include "kernels/base/team.h"
#include "kernels/norm.h"
#include "worker/environment/environment_spec.h"
#include "worker/model/policy_arrays.h"
#include "worker/model/policy_internal.h"
#include "worker/model/policy_memory.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)POLICY_CHUNK_ROWS == (int)DENSE_CHUNK_ROWS, "a chunk of rows is one of the kernel's");
_Static_assert((int)POLICY_CHUNK_ROWS == (int)MLP_CHUNK_ROWS, "a chunk of rows is one of the kernel's");

enum {
    WAVE_CHUNKS = 64, // at most, that a team computes between two calls of policy_progress
    WAVE_PIECE = 256, // parameters whose gradients one thread adds
};

/* The tutorial's network. */
struct tutorial {
    struct mlp_shape shape;
    struct mlp *mlp;
    struct mlp *whole; // the same without dropout, for policy_choose
    bool whole_loaded; // `whole` has the parameters as they are now
    /* The rows of one chunk without dropout: */
    float observations[POLICY_CHUNK_ROWS * MLP_INPUTS_MAX];   // (rows, inputs)
    float probabilities[POLICY_CHUNK_ROWS * MLP_ACTIONS_MAX]; // (rows, actions)
    uint16_t masks[POLICY_CHUNK_ROWS * MLP_HIDDEN_MAX / 16];  // (rows, mask words)
    int32_t drawn[POLICY_CHUNK_ROWS];                         // not used
    uint32_t row[POLICY_CHUNK_ROWS], zero[POLICY_CHUNK_ROWS];
};

struct policy_cpu {
    struct policy_arrays arrays; // the first member; tests look at it
    struct tutorial *tutorial;   // NULL: the policy has dense layers
    struct dense *dense;         // NULL: the tutorial's network; both hold a packed copy of the parameters
    struct dense_work **work; // (works) one for each piece that is computed at once; the first one also acts
    uint32_t works;
    struct policy_memory *memory[DENSE_NETWORKS]; // (memories); their parameters are the last ones
    uint32_t memories;
    size_t state_floats;                   // of a row's state
    uint32_t memory_first[DENSE_NETWORKS]; // the number of a memory's first parameter
    const struct dense_normalizer *normalizer;
    bool bytes, gaussian, has_value;
    uint32_t inputs; // elements of an observation
    struct adam_settings adam;
    uint32_t networks;    // that share no parameter: 2 with values of their own
    uint32_t wave_chunks; // that the team computes at once; 0: each piece is a network's whole pass
    float *wave;          // (wave_chunks, count) their gradients
};

static struct dense_batch dense_batch_of(const struct policy_cpu *policy, const struct policy_rows *rows)
{
    return (struct dense_batch){.count = rows->count,
                                .row = rows->row,
                                .observations = policy->bytes ? NULL : rows->observations,
                                .bytes = policy->bytes ? rows->observations : NULL,
                                .normalizer = policy->normalizer,
                                .mask = rows->allowed,
                                .choices = policy->gaussian ? NULL : rows->actions,
                                .actions = policy->gaussian ? rows->actions : NULL};
}

/* The number of the memory that a network reads. */
static uint32_t memory_of(const struct policy_cpu *policy, uint32_t network)
{
    return network < policy->memories ? network : 0;
}

/* Has the batch read features in the place of observations, from row `first` of them on. */
static void read_features(struct dense_batch *batch, struct dense_matrix features, uint32_t first)
{
    batch->features = features.at + first * features.stride;
    batch->stride = features.stride;
}

/* ---- acting ---- */

/* Numbers in the batch's order to where the rows have theirs. */
static void scatter(const struct policy_rows *rows, const float *from, float *to)
{
    for (uint32_t i = 0; i < rows->count; i++)
        to[rows->row[i]] = from[i];
}

/* Has the batch read what a memory makes of its rows; nothing without memories. `keeps`: their states. */
static void read_memory(const struct policy_cpu *policy, uint32_t memory, const struct policy_rows *chunk,
                        bool keeps, struct dense_batch *batch)
{
    const struct dense_batch observations = dense_batch_of(policy, chunk);
    if (policy->memories > 0)
        read_features(batch, policy_memory_step(policy->memory[memory], chunk, &observations, keeps), 0);
}

/* Chooses, or with `draw` draws, the rows' actions. */
static enum status act_dense(const struct policy_cpu *policy, const struct policy_rows *rows,
                             const struct dense_draw *draw, struct error *error)
{
    float log_probability[POLICY_CHUNK_ROWS], value[POLICY_CHUNK_ROWS];
    struct dense_batch batch = dense_batch_of(policy, rows);
    const bool keeps = draw != NULL && rows->values != NULL;
    const bool apart = keeps && policy->memories > 0 && policy->networks > 1;
    read_memory(policy, 0, rows, true, &batch);
    dense_act(policy->dense, policy->work[0], &batch, draw,
              &(struct dense_results){.log_probability = keeps || draw == NULL ? log_probability : NULL,
                                      .value = keeps && !apart ? value : NULL});
    if (apart && policy->memories > 1)
        read_memory(policy, 1, rows, true, &batch);
    if (apart)
        dense_evaluate(policy->dense, policy->work[0], &batch, &(struct dense_results){.value = value});
    if (draw == NULL && !policy_all_finite(log_probability, rows->count))
        return error_set(error, STATUS_CORRUPT, "the probability of an action is not finite");
    if (keeps) {
        scatter(rows, log_probability, rows->log_probabilities);
        scatter(rows, value, rows->values);
    }
    return STATUS_OK;
}

/* Fills the chunk's probabilities, without dropout. */
static void find_probabilities(struct policy_cpu *policy, const struct policy_rows *chunk)
{
    struct tutorial *tutorial = policy->tutorial;
    const uint32_t inputs = policy->inputs;
    const float *observations = chunk->observations;
    for (uint32_t i = 0; i < chunk->count; i++)
        memcpy(tutorial->observations + (size_t)i * inputs, observations + (size_t)chunk->row[i] * inputs,
               inputs * sizeof *observations);
    const struct mlp_batch batch = {.count = chunk->count,
                                    .row = tutorial->row,
                                    .observations = tutorial->observations,
                                    .masks = tutorial->masks,
                                    .actions = tutorial->drawn};
    if (!tutorial->whole_loaded)
        mlp_load(tutorial->whole, policy->arrays.values);
    tutorial->whole_loaded = true;
    mlp_act(tutorial->whole, &batch, 0, 0, tutorial->zero, tutorial->zero, tutorial->probabilities);
}

static enum status flat_act(void *self, const struct policy_rows *rows, const struct dense_draw *draw,
                            struct error *error)
{
    struct policy_cpu *policy = self;
    if (policy->dense != NULL)
        return act_dense(policy, rows, draw, error);
    if (draw != NULL) {
        const struct mlp_batch batch = policy_mlp_batch(rows);
        mlp_act(policy->tutorial->mlp, &batch, draw->seed, draw->episode, draw->environment, draw->step,
                NULL);
        return STATUS_OK;
    }
    find_probabilities(policy, rows);
    if (!policy_choose_greatest(rows, policy->tutorial->probabilities, policy->tutorial->shape.actions))
        return error_set(error, STATUS_CORRUPT, "the probability of an action is not finite");
    return STATUS_OK;
}

static enum status flat_estimate(void *self, const struct policy_rows *rows, struct error *error)
{
    const struct policy_cpu *policy = self;
    float value[POLICY_CHUNK_ROWS];
    struct dense_batch batch = dense_batch_of(policy, rows);
    (void)error;
    assert(policy->has_value);
    read_memory(policy, memory_of(policy, 1), rows, false, &batch);
    dense_evaluate(policy->dense, policy->work[0], &batch, &(struct dense_results){.value = value});
    scatter(rows, value, rows->values);
    return STATUS_OK;
}

/* The mean of exp(log_std), which is the first parameter where there is one. */
static double flat_deviation(const void *self)
{
    const struct policy_cpu *policy = self;
    const size_t count = policy->arrays.parameters[0].count;
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += exp((double)policy->arrays.values[i]);
    return sum / (double)count;
}

/* ---- the gradient of a batch ---- */

/* A batch to learn from: REINFORCE's rollout or PPO's minibatch. Each network learns by itself where they
 * share no parameter: no loss of one depends on the other's outputs. Of REINFORCE, a sum's `policy` is L. */
struct pass {
    struct policy_cpu *policy;
    const struct policy_rows *rows;
    policy_progress *progress;
    void *context;
    const float *coefficient;                   // REINFORCE's; NULL: PPO
    struct surrogate objective;                 // PPO's
    uint32_t chunks_max;                        // that are computed between two calls of progress
    uint32_t first, chunks;                     // the first row, and how many chunks are under way
    struct surrogate_sums networks[2];          // of each network's chunks so far
    bool goes_on[DENSE_NETWORKS];               // a memory's pass is not through
    struct surrogate_sums wave[WAVE_CHUNKS][2]; // of each chunk under way, by network
};

/* One network's gradient of the chunk that begins with row `first` of the batch, or of networks that share
 * layers the whole one; `adds` as dense_gradient has it. */
static void learn_dense(const struct pass *m, uint32_t slot, uint32_t network, uint32_t first,
                        const struct policy_rows *rows, const float *coefficient, float *gradient, bool adds,
                        struct surrogate_sums *sums)
{
    const struct policy_cpu *policy = m->policy;
    float log_probability[POLICY_CHUNK_ROWS], entropy[POLICY_CHUNK_ROWS], value[POLICY_CHUNK_ROWS];
    float pull[3][POLICY_CHUNK_ROWS];
    const bool is_ppo = coefficient == NULL, of_policy = network == 0;
    const bool of_value = is_ppo && (network == 1 || policy->networks == 1);
    struct dense_batch batch = dense_batch_of(policy, rows);
    struct dense_pulls pulls = {.log_probability = of_policy ? pull[0] : NULL,
                                .entropy = of_policy && is_ppo ? pull[1] : NULL,
                                .value = of_value ? pull[2] : NULL};
    assert(is_ppo || of_policy); // REINFORCE has no value network
    if (policy->memories > 0)
        read_features(&batch, policy_memory_features(policy->memory[memory_of(policy, network)]), first);
    if (network < policy->memories) {
        const struct dense_matrix to = policy_memory_pulls(policy->memory[network]);
        pulls.features = to.at + first * to.stride;
    }
    dense_evaluate(policy->dense, policy->work[slot], &batch,
                   &(struct dense_results){.log_probability = of_policy ? log_probability : NULL,
                                           .entropy = pulls.entropy != NULL ? entropy : NULL,
                                           .value = of_value ? value : NULL});
    if (!is_ppo)
        policy_judge_rewards(rows->count, coefficient, log_probability, pull[0], sums);
    else if (of_policy)
        surrogate_judge_actions(&m->objective, rows->count, rows->row, log_probability, entropy, &pulls,
                                sums);
    if (of_value)
        surrogate_judge_values(&m->objective, rows->count, rows->row, value, &pulls, sums);
    dense_gradient(policy->dense, policy->work[slot], &pulls, gradient, adds);
}

/* Chunk number `chunk` of those under way. */
static void learn_chunk(const struct pass *m, uint32_t slot, uint32_t chunk, uint32_t network,
                        float *gradient, bool adds, struct surrogate_sums *sums)
{
    const struct policy_cpu *policy = m->policy;
    const uint32_t first = m->first + chunk * POLICY_CHUNK_ROWS;
    const struct policy_rows rows = policy_chunk(m->rows, first);
    const float *coefficient = m->coefficient != NULL ? m->coefficient + first : NULL;
    if (policy->dense != NULL) {
        learn_dense(m, slot, network, first, &rows, coefficient, gradient, adds, sums);
        return;
    }
    const struct mlp_batch batch = policy_mlp_batch(&rows);
    if (!adds)
        memset(gradient, 0, policy->arrays.count * sizeof *gradient);
    sums->policy = mlp_gradient(policy->tutorial->mlp, &batch, coefficient, gradient);
}

/* A network's part of the chunks under way, chunk by chunk. */
static void learn_network(void *context, uint32_t network)
{
    struct pass *m = context;
    for (uint32_t chunk = 0; chunk < m->chunks; chunk++) {
        struct surrogate_sums sums = {0};
        learn_chunk(m, network, chunk, network, m->policy->arrays.gradient, m->first > 0 || chunk > 0, &sums);
        surrogate_add(&m->networks[network], &sums);
    }
}

static void begin_memory(void *context, uint32_t memory)
{
    const struct pass *m = context;
    const struct dense_batch batch = dense_batch_of(m->policy, m->rows);
    policy_memory_begin(m->policy->memory[memory], m->rows, &batch);
}

static void memory_forward(void *context, uint32_t memory)
{
    struct pass *m = context;
    if (m->goes_on[memory])
        m->goes_on[memory] = policy_memory_forward(m->policy->memory[memory]);
}

static void memory_backward(void *context, uint32_t memory)
{
    struct pass *m = context;
    const struct policy_cpu *policy = m->policy;
    const size_t offset = policy->arrays.parameters[policy->memory_first[memory]].offset;
    if (m->goes_on[memory])
        m->goes_on[memory] = policy_memory_backward(policy->memory[memory], policy->arrays.gradient + offset);
}

/* The team's threads, or this one, do each piece. */
static void run_pieces(const struct policy_cpu *policy, uint32_t pieces, team_work *work, void *context)
{
    if (policy->arrays.team != NULL && pieces > 1)
        team_run(policy->arrays.team, pieces, work, context);
    else
        for (uint32_t piece = 0; piece < pieces; piece++)
            work(context, piece);
}

static void report_progress(const struct pass *m)
{
    if (m->progress != NULL)
        m->progress(m->context);
}

/* Each memory's pass over the minibatch, piece by piece, until all are through. */
static void run_memories(struct pass *m, team_work *work)
{
    const uint32_t memories = m->policy->memories;
    bool goes_on = memories > 0;
    for (uint32_t i = 0; i < memories; i++)
        m->goes_on[i] = true;
    while (goes_on) {
        run_pieces(m->policy, memories, work, m);
        report_progress(m);
        goes_on = m->goes_on[0] || (memories > 1 && m->goes_on[1]);
    }
}

/* A network's part of one chunk of the wave. */
static void learn_piece(void *context, uint32_t piece)
{
    struct pass *m = context;
    const struct policy_cpu *policy = m->policy;
    const uint32_t chunk = piece / policy->networks, network = piece % policy->networks;
    learn_chunk(m, piece, chunk, network, policy->wave + chunk * policy->arrays.count, false,
                &m->wave[chunk][network]);
}

/* Adds some parameters' gradients of the wave's chunks, in their order, to those of the chunks before. */
static void add_piece(void *context, uint32_t piece)
{
    const struct pass *m = context;
    const struct policy_arrays *arrays = &m->policy->arrays;
    const size_t begin = (size_t)piece * WAVE_PIECE, left = arrays->count - begin;
    const size_t end = begin + (left < WAVE_PIECE ? left : WAVE_PIECE);
    if (m->first == 0)
        memset(arrays->gradient + begin, 0, (end - begin) * sizeof *arrays->gradient);
    for (uint32_t chunk = 0; chunk < m->chunks; chunk++) {
        const float *gradient = m->policy->wave + chunk * arrays->count;
        for (size_t i = begin; i < end; i++)
            arrays->gradient[i] += gradient[i];
    }
}

/* The chunks under way at once, each gradient into memory of its own. */
static void learn_wave(struct pass *m)
{
    const struct policy_cpu *policy = m->policy;
    memset(m->wave, 0, m->chunks * sizeof *m->wave);
    team_run(policy->arrays.team, m->chunks * policy->networks, learn_piece, m);
    team_run(policy->arrays.team, (uint32_t)((policy->arrays.count + WAVE_PIECE - 1) / WAVE_PIECE), add_piece,
             m);
    for (uint32_t chunk = 0; chunk < m->chunks; chunk++)
        for (int network = 0; network < 2; network++)
            surrogate_add(&m->networks[network], &m->wave[chunk][network]);
}

/* Fills policy->arrays.gradient and the batch's sums. The same bits whoever computes what: each chunk is
 * summed by itself, and the chunks' sums are added in their order. */
static void learn_batch(struct pass *m)
{
    const struct policy_cpu *policy = m->policy;
    const uint32_t least = m->coefficient != NULL ? 2 * POLICY_THREAD_ROWS : POLICY_CHUNK_ROWS + 1;
    const bool waves = policy->wave_chunks > 0 && m->rows->count >= least;
    m->chunks_max = waves ? policy->wave_chunks : m->coefficient != NULL ? 1 : WAVE_CHUNKS;
    run_pieces(policy, policy->memories, begin_memory, m);
    run_memories(m, memory_forward);
    for (; m->first < m->rows->count; m->first += m->chunks * POLICY_CHUNK_ROWS) {
        const uint32_t chunks = (m->rows->count - m->first + POLICY_CHUNK_ROWS - 1) / POLICY_CHUNK_ROWS;
        m->chunks = chunks < m->chunks_max ? chunks : m->chunks_max;
        if (waves)
            learn_wave(m);
        else
            run_pieces(policy, policy->networks, learn_network, m);
        report_progress(m);
    }
    run_memories(m, memory_backward);
    for (int network = 0; network < 2; network++)
        surrogate_add(&m->objective.sums, &m->networks[network]);
}

/* ---- what is not finite ---- */

/* The sentence of a loss that is not finite. Names the first tensor that holds a NaN or an infinity:
 * observations, what was remembered, returns (`coefficient`, which may be NULL), then parameters. */
static enum status explain_loss(const struct policy_cpu *policy, const struct policy_rows *rows,
                                const float *coefficient, double loss, struct error *error)
{
    static const char begin[] = "the first tensor that holds a NaN or an infinity is the";
    const float *observations = rows->observations;
    for (uint32_t i = 0; i < rows->count && !policy->bytes; i++)
        if (!policy_all_finite(observations + (size_t)rows->row[i] * policy->inputs, policy->inputs))
            return error_set(error, STATUS_INTERNAL, "the loss is %g; %s observations, row %u of %u", loss,
                             begin, i, rows->count);
    const size_t floats = policy->state_floats;
    for (uint32_t i = 0; i < rows->count && floats > 0; i++)
        if (!policy_all_finite(rows->states + rows->row[i] * floats, floats))
            return error_set(error, STATUS_INTERNAL, "the loss is %g; %s memory before row %u of %u", loss,
                             begin, i, rows->count);
    for (uint32_t i = 0; i < rows->count && coefficient != NULL; i++)
        if (!isfinite(coefficient[i]))
            return error_set(error, STATUS_INTERNAL, "the loss is %g; %s returns, row %u of %u", loss, begin,
                             i, rows->count);
    const char *parameter = policy_arrays_lost(&policy->arrays, policy->arrays.values);
    if (parameter != NULL)
        return error_set(error, STATUS_INTERNAL, "the loss is %g; %s parameter %s", loss, begin, parameter);
    return error_set(error, STATUS_INTERNAL, "the loss is %g; %s log-probabilities", loss, begin);
}

/* STATUS_INTERNAL names the first parameter whose gradient holds a NaN or an infinity: one in a parameter
 * would stay. */
static enum status check_gradient(const struct policy_cpu *policy, struct error *error)
{
    const char *lost = policy_arrays_lost(&policy->arrays, policy->arrays.gradient);
    return lost == NULL
               ? STATUS_OK
               : error_set(error, STATUS_INTERNAL, "the gradient of %s holds a NaN or an infinity", lost);
}

/* ---- the step ---- */

/* Of dense layers and memories. */
static void load_parameter(const struct policy_cpu *policy, uint32_t number)
{
    uint32_t memory = policy->memories;
    while (memory > 0 && number < policy->memory_first[memory - 1])
        memory--;
    if (memory == 0) {
        dense_load_parameter(policy->dense, policy->arrays.values, number);
        return;
    }
    const uint32_t first = policy->memory_first[memory - 1];
    policy_memory_load_parameter(policy->memory[memory - 1],
                                 policy->arrays.values + policy->arrays.parameters[first].offset,
                                 number - first);
}

struct flat_step {
    struct policy_cpu *policy;
    struct adam_factors factors;
    float scale; // of the gradient
};

static void step_parameter(void *context, uint32_t number)
{
    const struct flat_step *step = context;
    const struct policy_cpu *policy = step->policy;
    const struct policy_parameter *parameter = &policy->arrays.parameters[number];
    policy_arrays_step(&policy->arrays, &step->factors, parameter->offset, parameter->count, step->scale);
    if (policy->dense != NULL)
        load_parameter(policy, number);
}

void policy_cpu_load(void *self)
{
    struct policy_cpu *policy = self;
    for (uint32_t p = 0; p < policy->arrays.parameter_count && policy->dense != NULL; p++)
        load_parameter(policy, p);
    if (policy->dense != NULL)
        return;
    mlp_load(policy->tutorial->mlp, policy->arrays.values);
    policy->tutorial->whole_loaded = false;
}

/* Takes Adam's step at learning rate lr, by the gradient times `scale`, which is at most 1. */
static void take_step(struct policy_cpu *policy, double lr, float scale)
{
    struct flat_step step = {.policy = policy, .scale = scale};
    struct adam_settings adam = policy->adam;
    adam.lr = lr;
    adam_factors(&adam, ++policy->arrays.steps, &step.factors);
    run_pieces(policy, policy->arrays.parameter_count, step_parameter, &step);
    if (policy->dense == NULL)
        policy_cpu_load(policy);
}

static enum status flat_learn(void *self, const struct policy_rows *rows, const float *coefficient,
                              uint32_t episode, double *loss, policy_progress *progress, void *context,
                              struct error *error)
{
    struct policy_cpu *policy = self;
    struct pass m = {
        .policy = policy, .rows = rows, .progress = progress, .context = context, .coefficient = coefficient};
    (void)episode;
    if (rows->count == 0)
        memset(policy->arrays.gradient, 0, policy->arrays.count * sizeof *policy->arrays.gradient);
    learn_batch(&m);
    const double found = m.objective.sums.policy;
    if (!isfinite(found))
        return explain_loss(policy, rows, coefficient, found, error);
    const enum status status = check_gradient(policy, error);
    if (status != STATUS_OK)
        return status;
    take_step(policy, policy->adam.lr, 1);
    *loss = found;
    return STATUS_OK;
}

static enum status flat_improve(void *self, const struct policy_rows *rows,
                                const struct policy_targets *targets, const struct policy_step *step,
                                struct surrogate_losses *losses, struct error *error)
{
    struct policy_cpu *policy = self;
    struct pass m = {.policy = policy, .rows = rows, .progress = step->progress, .context = step->context};
    assert(policy->has_value);
    policy_begin_objective(&m.objective, rows, targets, step);
    learn_batch(&m);
    *losses = surrogate_losses(&m.objective);
    if (!isfinite(losses->loss))
        return explain_loss(policy, rows, NULL, losses->loss, error);
    if (losses->kl > step->kl_max)
        return STATUS_OK;
    losses->gradient_norm = norm_of(policy->arrays.gradient, policy->arrays.count);
    if (!isfinite(losses->gradient_norm))
        return check_gradient(policy, error);
    take_step(policy, step->lr, (float)policy_clip_factor(losses->gradient_norm, step->max_norm));
    losses->stepped = true;
    return STATUS_OK;
}

static enum status flat_restore(void *self, const struct policy_values *values, struct error *error)
{
    struct policy_cpu *policy = self;
    (void)error;
    policy_arrays_restore(&policy->arrays, values);
    policy_cpu_load(policy);
    return STATUS_OK;
}

/* ---- opening ---- */

/* Of a policy with values: the pieces of a minibatch are its networks, chunk after chunk, as long as there
 * are no more threads than networks, and always with a memory; else a wave of chunks of each. */
static uint32_t plan_wave(struct policy_cpu *policy, const struct policy_config *config)
{
    const uint32_t rows = policy_minibatch_rows(config);
    const uint32_t chunks = (rows + POLICY_CHUNK_ROWS - 1) / POLICY_CHUNK_ROWS;
    const uint32_t pieces = chunks * policy->networks;
    const uint32_t most = config->memory != POLICY_NO_MEMORY ? policy->networks : pieces;
    const uint32_t threads = config->threads < most ? config->threads : most;
    if (threads > policy->networks) {
        const uint32_t wave = 2 * (threads + policy->networks - 1) / policy->networks;
        policy->wave_chunks = wave < WAVE_CHUNKS ? wave : WAVE_CHUNKS;
    }
    return threads;
}

/* No more threads than there is work for. */
static enum status open_team(struct policy_cpu *policy, const struct policy_config *config,
                             struct error *error)
{
    const uint32_t most = config->rows_max / POLICY_THREAD_ROWS;
    uint32_t threads = config->threads < most ? config->threads : most;
    if (config->has_value)
        threads = plan_wave(policy, config);
    else if (threads > 1 && policy_form(config) == POLICY_FORM_TUTORIAL)
        policy->wave_chunks = WAVE_CHUNKS;
    else
        threads = 1;
    if (policy->wave_chunks > 0) {
        policy->wave = calloc(policy->wave_chunks * policy->arrays.count, sizeof *policy->wave);
        if (policy->wave == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for the gradients of %u threads", threads);
    }
    return threads < 2 ? STATUS_OK : team_new(&policy->arrays.team, threads, error);
}

static enum status open_tutorial(struct policy_cpu *policy, const struct policy_config *config,
                                 struct error *error)
{
    struct tutorial *tutorial = policy->tutorial = calloc(1, sizeof *tutorial);
    if (tutorial == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy's rows");
    tutorial->shape = policy_mlp_shape(config);
    for (uint32_t i = 0; i < POLICY_CHUNK_ROWS; i++)
        tutorial->row[i] = i;
    const enum status status = mlp_new(&tutorial->mlp, &tutorial->shape, config->dropout, error);
    return status == STATUS_OK ? mlp_new(&tutorial->whole, &tutorial->shape, 0, error) : status;
}

static enum status open_dense(struct policy_cpu *policy, const struct policy_config *config,
                              struct error *error)
{
    const struct dense_shape shape = policy_dense_shape(config);
    const uint32_t slots = policy->networks * (policy->wave_chunks > 0 ? policy->wave_chunks : 1);
    policy->gaussian = shape.gaussian;
    policy->work = calloc(slots, sizeof *policy->work);
    if (policy->work == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    enum status status = dense_new(&policy->dense, &shape, error);
    for (; policy->works < slots && status == STATUS_OK; policy->works++)
        status = dense_work_new(&policy->work[policy->works], policy->dense, error);
    return status;
}

static enum status open_memories(struct policy_cpu *policy, const struct policy_config *config,
                                 struct error *error)
{
    const uint32_t memories = policy_memories(config);
    policy->state_floats = policy_config_state_floats(config);
    const struct dense_shape shape = policy_dense_shape(config);
    struct dense_parameter dense[DENSE_PARAMETERS_MAX];
    uint32_t first = dense_parameters(&shape, dense);
    enum status status = STATUS_OK;
    for (; policy->memories < memories && status == STATUS_OK; policy->memories++) {
        struct recurrent_parameter list[RECURRENT_PARAMETERS_MAX];
        const struct recurrent_shape memory = policy_memory_shape(config, policy->memories);
        policy->memory_first[policy->memories] = first;
        first += recurrent_parameters(&memory, list);
        status = policy_memory_new(&policy->memory[policy->memories], config, policy->memories, error);
    }
    return status;
}

static enum status flat_open(void *self, const struct policy_config *config, struct backend *backend,
                             const struct dense_normalizer *normalizer, struct error *error)
{
    struct policy_cpu *policy = self;
    (void)backend;
    policy->normalizer = normalizer;
    policy->bytes = config->observation.dtype == ENVIRONMENT_U8;
    policy->has_value = config->has_value;
    policy->inputs = (uint32_t)environment_space_elements(&config->observation);
    policy->adam = config->adam;
    policy->networks = config->has_value && !config->shared_value ? 2 : 1;
    enum status status = adam_check(&config->adam, error);
    if (status == STATUS_OK)
        status = policy_arrays_open(&policy->arrays, config, error);
    if (status == STATUS_OK)
        status = open_team(policy, config, error);
    if (status == STATUS_OK)
        status = policy_form(config) == POLICY_FORM_TUTORIAL ? open_tutorial(policy, config, error)
                                                             : open_dense(policy, config, error);
    if (status == STATUS_OK)
        status = open_memories(policy, config, error);
    if (status == STATUS_OK)
        policy_cpu_load(policy);
    return status;
}

static void flat_close(void *self)
{
    struct policy_cpu *policy = self;
    team_free(policy->arrays.team);
    if (policy->tutorial != NULL) {
        mlp_free(policy->tutorial->mlp);
        mlp_free(policy->tutorial->whole);
    }
    free(policy->tutorial);
    for (uint32_t i = 0; i < policy->works; i++)
        dense_work_free(policy->work[i]);
    free(policy->work);
    dense_free(policy->dense);
    for (uint32_t i = 0; i < DENSE_NETWORKS; i++)
        policy_memory_free(policy->memory[i]);
    free(policy->wave);
    policy_arrays_close(&policy->arrays);
}

const struct policy_kind policy_cpu_kind = {.bytes = sizeof(struct policy_cpu),
                                            .takes_chunks = true,
                                            .open = flat_open,
                                            .close = flat_close,
                                            .act = flat_act,
                                            .learn = flat_learn,
                                            .deviation = flat_deviation,
                                            .estimate = flat_estimate,
                                            .improve = flat_improve,
                                            .save = policy_arrays_save,
                                            .restore = flat_restore};
