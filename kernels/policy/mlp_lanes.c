/* The policy's rows in 16 lanes: forward, sampling and backward, compiled once per instruction set.
 *
 * The hidden units of one row lie across the lanes. Softmax and sampling have few numbers per row, so there
 * the rows lie across the lanes, as many as one register holds. Lanes without a row hold zeros and are
 * computed for nothing, which costs less than a second way to compute.
 *
 * Dropout's factor 1 / (1 - p) is the same for every kept unit. It is applied once, where the sum over the
 * units ends, and not to each unit: z = b2 + scale * sum; backward likewise, where the sum's gradient begins.
 *
 * Each body takes the shape as arguments. LANES_FOR_SHAPE calls it with CartPole's numbers as constants, so
 * that the compiler keeps a row's sums in registers, or else with the packed shape. */
#include "kernels/policy/mlp_lanes.h"

#include "kernels/lanes/lanes.h"
#include "kernels/policy/dropout_mask.h"

#include <assert.h>

#define LANES_FOR_SHAPE(packed, body, ...)                                                                   \
    ((packed)->shape.inputs == 4 && (packed)->shape.actions == 2                                             \
         ? body(packed, __VA_ARGS__, 4, 2)                                                                   \
         : body(packed, __VA_ARGS__, (packed)->shape.inputs, (packed)->shape.actions))

/* A row to a lane, action by action. */
struct tile {
    float sum[MLP_ACTIONS_MAX][LANES_WIDTH];         // of W2 h, without scale and bias
    float probability[MLP_ACTIONS_MAX][LANES_WIDTH]; // softmax
    float log_probability[MLP_ACTIONS_MAX][LANES_WIDTH];
};

static uint32_t tile_rows(const struct mlp_batch *batch, uint32_t first)
{
    uint32_t left = batch->count - first;
    return left < LANES_WIDTH ? left : LANES_WIDTH;
}

/* ---- forward ---- */

/* relu(k (W1 x + b1)) of one register's units; their keep bits are the low ones of `mask`. */
LANES_INLINE vf hidden_units(const float *weights, const float *x, uint32_t mask, uint32_t inputs)
{
    vf a = lanes_load(weights);
#pragma GCC unroll 16
    for (uint32_t i = 0; i < inputs; i++)
        a = lanes_fma(lanes_load(weights + (1 + i) * LANES_COUNT), lanes_set(x[i]), a);
    return lanes_keep(mask, lanes_max((vf){}, a));
}

/* Column `lane` of tile->sum: one row through both layers. */
LANES_INLINE void forward_row(const struct mlp_packed *packed, const float *x, const uint16_t *mask,
                              struct tile *tile, uint32_t lane, uint32_t inputs, uint32_t actions)
{
    const uint32_t stride = (1 + inputs + actions) * LANES_COUNT;
    vf sum[MLP_ACTIONS_MAX][LANES_PARTS] = {};
    const float *weights = packed->weights;
    for (uint32_t v = 0; v < packed->blocks; v++, weights += stride) {
#pragma GCC unroll 4
        for (uint32_t p = 0; p < LANES_PARTS; p++) {
            const float *units = weights + p * LANES_WIDTH;
            vf h = hidden_units(units, x, (uint32_t)mask[v] >> (p * LANES_WIDTH), inputs);
#pragma GCC unroll 2
            for (uint32_t a = 0; a < actions; a++)
                sum[a][p] = lanes_fma(lanes_load(units + (1 + inputs + a) * LANES_COUNT), h, sum[a][p]);
        }
    }
    for (uint32_t a = 0; a < actions; a++)
        tile->sum[a][lane] = lanes_sum(sum[a]);
}

/* Softmax and, if `logs`, its logarithm, of the rows in the tile's lanes; actions ascending. */
LANES_INLINE void softmax_tile(const struct mlp_packed *packed, struct tile *tile, uint32_t actions,
                               bool logs)
{
    vf z[MLP_ACTIONS_MAX], e[MLP_ACTIONS_MAX];
    const vf scale = lanes_set(packed->scale);
    for (uint32_t a = 0; a < actions; a++)
        z[a] = lanes_fma(lanes_load(tile->sum[a]), scale, lanes_set(packed->b2[a]));
    vf highest = z[0];
    for (uint32_t a = 1; a < actions; a++)
        highest = lanes_max(highest, z[a]);
    vf total = {};
    for (uint32_t a = 0; a < actions; a++) {
        z[a] -= highest;
        e[a] = lanes_exp(z[a]);
        total += e[a];
    }
    vf log_total = logs ? lanes_log(total) : (vf){};
    for (uint32_t a = 0; a < actions; a++) {
        lanes_store(tile->probability[a], e[a] / total);
        if (logs)
            lanes_store(tile->log_probability[a], z[a] - log_total);
    }
}

LANES_INLINE void forward_tile(const struct mlp_packed *packed, const struct mlp_batch *batch, uint32_t first,
                               uint32_t rows, struct tile *tile, uint32_t inputs, uint32_t actions, bool logs)
{
    for (uint32_t a = 0; a < actions && rows < LANES_WIDTH; a++)
        memset(tile->sum[a], 0, sizeof tile->sum[a]);
    for (uint32_t r = 0; r < rows; r++) {
        size_t row = batch->row[first + r];
        forward_row(packed, batch->observations + row * inputs, batch->masks + row * packed->blocks, tile, r,
                    inputs, actions);
    }
    softmax_tile(packed, tile, actions, logs);
}

static void copy_probabilities(const struct tile *tile, uint32_t first, uint32_t rows, uint32_t actions,
                               float *probabilities)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t a = 0; a < actions; a++)
            probabilities[(size_t)(first + r) * actions + a] = tile->probability[a][r];
}

/* ---- act ---- */

/* Each lane's first action whose cumulated probability is above the row's uniform. The sums only grow, so
 * that is the number of sums, without the last, that are not above it. */
LANES_INLINE void sample_tile(const struct mlp_batch *batch, uint32_t first, uint32_t rows, uint64_t seed,
                              uint32_t episode, const uint32_t *environment, const uint32_t *step,
                              const struct tile *tile, uint32_t actions)
{
    uint32_t environments[LANES_WIDTH] = {0}, steps[LANES_WIDTH] = {0};
    memcpy(environments, environment + first, rows * sizeof *environments);
    memcpy(steps, step + first, rows * sizeof *steps);
    vu c[4] = {lanes_set_u32((uint32_t)RNG_ACTION << RNG_STREAM_SHIFT), lanes_load_u32(environments),
               lanes_load_u32(steps), lanes_set_u32(episode)};
    lanes_philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
    vf uniform = __builtin_convertvector((vi)(c[0] >> 8), vf) * 0x1p-24f;
    vf cumulated = {}, action = {};
    for (uint32_t a = 0; a + 1 < actions; a++) {
        cumulated += lanes_load(tile->probability[a]);
        action += lanes_where_not_less(uniform, cumulated, lanes_set(1.0f));
    }
    float chosen[LANES_WIDTH];
    lanes_store(chosen, action);
    for (uint32_t r = 0; r < rows; r++)
        batch->actions[batch->row[first + r]] = (int32_t)chosen[r];
}

LANES_INLINE void act_body(const struct mlp_packed *packed, const struct mlp_batch *batch, uint64_t seed,
                           uint32_t episode, const uint32_t *environment, const uint32_t *step,
                           float *probabilities, uint32_t inputs, uint32_t actions)
{
    struct tile tile;
    for (uint32_t first = 0; first < batch->count; first += LANES_WIDTH) {
        uint32_t rows = tile_rows(batch, first);
        for (uint32_t i = first; i < first + rows; i++)
            dropout_mask_draw(batch->masks + (size_t)batch->row[i] * packed->blocks, packed->blocks,
                              &(struct rng_key){seed, environment[i], step[i], episode}, packed->draws,
                              packed->draw_bound, packed->last_word);
        forward_tile(packed, batch, first, rows, &tile, inputs, actions, false);
        sample_tile(batch, first, rows, seed, episode, environment, step, &tile, actions);
        if (probabilities != NULL)
            copy_probabilities(&tile, first, rows, actions, probabilities);
    }
}

static void act(const struct mlp_packed *packed, const struct mlp_batch *batch, uint64_t seed,
                uint32_t episode, const uint32_t *environment, const uint32_t *step, float *probabilities)
{
    LANES_FOR_SHAPE(packed, act_body, batch, seed, episode, environment, step, probabilities);
}

/* ---- gradient ---- */

/* dL/dz of the chunk's rows, and the same times 1 / (1 - p), which is what reaches W2 and the units. */
struct pulls {
    float plain[MLP_ACTIONS_MAX][MLP_CHUNK_ROWS];
    float scaled[MLP_ACTIONS_MAX][MLP_CHUNK_ROWS];
};

/* The forward of the chunk; fills `pulls` and returns the loss. d(-c log P(t))/dz_a = c (P(a) - [a = t]). */
LANES_INLINE double pull_chunk(const struct mlp_packed *packed, const struct mlp_batch *batch,
                               const float *coefficient, struct pulls *pulls, uint32_t inputs,
                               uint32_t actions)
{
    struct tile tile;
    double loss = 0;
    for (uint32_t first = 0; first < batch->count; first += LANES_WIDTH) {
        uint32_t rows = tile_rows(batch, first);
        forward_tile(packed, batch, first, rows, &tile, inputs, actions, true);
        for (uint32_t r = 0; r < rows; r++) {
            const int32_t taken = batch->actions[batch->row[first + r]];
            assert(taken >= 0 && (uint32_t)taken < actions);
            loss -= (double)coefficient[first + r] * (double)tile.log_probability[taken][r];
            tile.probability[taken][r] -= 1.0f;
            for (uint32_t a = 0; a < actions; a++) {
                float pull = coefficient[first + r] * tile.probability[a][r];
                pulls->plain[a][first + r] = pull;
                pulls->scaled[a][first + r] = pull * packed->scale;
            }
        }
    }
    return loss;
}

/* The gradient of one register's units, summed over the chunk's rows in ascending order; laid out like their
 * weights. The units' values are computed again, which is cheaper than to store and fetch them. */
LANES_INLINE void backward_units(const float *weights, const struct mlp_batch *batch, uint32_t blocks,
                                 uint32_t block, uint32_t shift, const struct pulls *pulls, float *sums,
                                 uint32_t inputs, uint32_t actions)
{
    vf g1[MLP_INPUTS_MAX] = {}, bias = {}, g2[MLP_ACTIONS_MAX] = {};
    for (uint32_t r = 0; r < batch->count; r++) {
        size_t row = batch->row[r];
        const float *x = batch->observations + row * inputs;
        vf h = hidden_units(weights, x, (uint32_t)batch->masks[row * blocks + block] >> shift, inputs);
        vf pull = {};
#pragma GCC unroll 16
        for (uint32_t a = 0; a < actions; a++) {
            const vf dz = lanes_set(pulls->scaled[a][r]);
            g2[a] = lanes_fma(dz, h, g2[a]);
            pull = lanes_fma(dz, lanes_load(weights + (1 + inputs + a) * LANES_COUNT), pull);
        }
        pull = lanes_where_less((vf){}, h, pull);
        bias += pull;
#pragma GCC unroll 16
        for (uint32_t i = 0; i < inputs; i++)
            g1[i] = lanes_fma(pull, lanes_set(x[i]), g1[i]);
    }
    lanes_store(sums, bias);
#pragma GCC unroll 16
    for (uint32_t i = 0; i < inputs; i++)
        lanes_store(sums + (1 + i) * LANES_COUNT, g1[i]);
#pragma GCC unroll 16
    for (uint32_t a = 0; a < actions; a++)
        lanes_store(sums + (1 + inputs + a) * LANES_COUNT, g2[a]);
}

/* Adds one block's sums to `gradient`, which has PyTorch's order. */
LANES_INLINE void add_block(const float *sums, uint32_t block, uint32_t hidden, float *gradient,
                            uint32_t inputs, uint32_t actions)
{
    float *w1 = gradient, *b1 = w1 + (size_t)hidden * inputs, *w2 = b1 + hidden;
    uint32_t begin = block * LANES_COUNT;
    uint32_t units = hidden - begin < LANES_COUNT ? hidden - begin : LANES_COUNT;
    for (uint32_t u = 0; u < units; u++) {
        for (uint32_t i = 0; i < inputs; i++)
            w1[(size_t)(begin + u) * inputs + i] += sums[(1 + i) * LANES_COUNT + u];
        b1[begin + u] += sums[u];
        for (uint32_t a = 0; a < actions; a++)
            w2[(size_t)a * hidden + begin + u] += sums[(1 + inputs + a) * LANES_COUNT + u];
    }
}

LANES_INLINE double gradient_body(const struct mlp_packed *packed, const struct mlp_batch *batch,
                                  const float *coefficient, float *gradient, uint32_t inputs,
                                  uint32_t actions)
{
    struct pulls pulls;
    float sums[(1 + MLP_INPUTS_MAX + MLP_ACTIONS_MAX) * LANES_COUNT];
    const uint32_t hidden = packed->shape.hidden, stride = (1 + inputs + actions) * LANES_COUNT;
    double loss = pull_chunk(packed, batch, coefficient, &pulls, inputs, actions);
    for (uint32_t v = 0; v < packed->blocks; v++) {
        for (uint32_t p = 0; p < LANES_PARTS; p++)
            backward_units(packed->weights + v * stride + p * LANES_WIDTH, batch, packed->blocks, v,
                           p * LANES_WIDTH, &pulls, sums + p * LANES_WIDTH, inputs, actions);
        add_block(sums, v, hidden, gradient, inputs, actions);
    }
    float *b2 = gradient + (size_t)hidden * (inputs + 1 + actions);
    for (uint32_t a = 0; a < actions; a++) {
        float sum = 0;
        for (uint32_t r = 0; r < batch->count; r++)
            sum += pulls.plain[a][r];
        b2[a] += sum;
    }
    return loss;
}

static double gradient(const struct mlp_packed *packed, const struct mlp_batch *batch,
                       const float *coefficient, float *slab)
{
    return LANES_FOR_SHAPE(packed, gradient_body, batch, coefficient, slab);
}

/* ---- the table ---- */

static void exp_16(const float x[MLP_LANES], float y[MLP_LANES])
{
    for (uint32_t p = 0; p < LANES_COUNT; p += LANES_WIDTH)
        lanes_store(y + p, lanes_exp(lanes_load(x + p)));
}

static void log_16(const float x[MLP_LANES], float y[MLP_LANES])
{
    for (uint32_t p = 0; p < LANES_COUNT; p += LANES_WIDTH)
        lanes_store(y + p, lanes_log(lanes_load(x + p)));
}

static void fma_16(const float a[MLP_LANES], const float b[MLP_LANES], const float c[MLP_LANES],
                   float y[MLP_LANES])
{
    for (uint32_t p = 0; p < LANES_COUNT; p += LANES_WIDTH)
        lanes_store(y + p, lanes_fma(lanes_load(a + p), lanes_load(b + p), lanes_load(c + p)));
}

#define LANES_TEXT(isa) #isa
#define LANES_TEXT_EXPANDED(isa) LANES_TEXT(isa)

const struct mlp_lanes LANES_NAME(mlp_lanes) = {
    .name = LANES_TEXT_EXPANDED(LANES_ISA),
    .act = act,
    .gradient = gradient,
    .exp = exp_16,
    .log = log_16,
    .fma = fma_16,
};
