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
#include "kernels/policy/lanes_internal.h"

#include "kernels/lanes/lanes.h"

#include <assert.h>

#define LANES_FOR_SHAPE(packed, body, ...)                                                                   \
    ((packed)->shape.inputs == 4 && (packed)->shape.actions == 2                                             \
         ? body(packed, __VA_ARGS__, 4, 2, ROWS_AT_ONCE)                                                     \
         : body(packed, __VA_ARGS__, (packed)->shape.inputs, (packed)->shape.actions, 1))

/* Rows that go through the layers together, so that a weight is fetched once for all of them. With 4, inputs
 * and sums fill AVX-512's 32 registers. */
enum { ROWS_AT_ONCE = LANES_WIDTH == 16 ? 4 : 2, TILE_ROWS = LANES_COUNT };
enum { BLOCKS_MAX = MLP_HIDDEN_MAX / LANES_COUNT };

/* Consecutive rows of a batch. */
struct tile {
    uint32_t first, rows;                          // of the batch; at most TILE_ROWS
    float x[TILE_ROWS * MLP_INPUTS_MAX];           // (rows, inputs): a copy
    uint16_t *mask[TILE_ROWS];                     // the row's words, in the batch's masks
    float sum[MLP_ACTIONS_MAX][TILE_ROWS];         // of W2 h, without scale and bias
    float probability[MLP_ACTIONS_MAX][TILE_ROWS]; // softmax
    float log_probability[MLP_ACTIONS_MAX][TILE_ROWS];
};

LANES_INLINE void begin_tile(struct tile *tile, const struct mlp_packed *packed,
                             const struct mlp_batch *batch, uint32_t first, uint32_t inputs)
{
    const uint32_t left = batch->count - first;
    tile->first = first;
    tile->rows = left < TILE_ROWS ? left : TILE_ROWS;
    for (uint32_t r = 0; r < tile->rows; r++) {
        const size_t row = batch->row[first + r];
        memcpy(tile->x + r * inputs, batch->observations + row * inputs, inputs * sizeof *tile->x);
        tile->mask[r] = batch->masks + row * packed->blocks;
    }
}

/* Asks for the rows of the tile that begins at `first`: the learner's rows lie far apart. */
LANES_INLINE void prefetch_tile(const struct mlp_packed *packed, const struct mlp_batch *batch,
                                uint32_t first, uint32_t inputs)
{
    const uint32_t end = first + TILE_ROWS < batch->count ? first + TILE_ROWS : batch->count;
    for (uint32_t i = first; i < end; i++) {
        const size_t row = batch->row[i];
        __builtin_prefetch(batch->observations + row * inputs);
        __builtin_prefetch(batch->masks + row * packed->blocks);
        __builtin_prefetch(batch->actions + row);
    }
}

/* What the draws are keyed by: mlp_act's arguments. */
struct draws {
    uint64_t seed;
    uint32_t episode;
    const uint32_t *environment, *step; // (count)
};

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

/* Columns `row` to `row` + `rows` - 1 of tile->sum: rows through both layers. Keeps the units' values in
 * `hidden`, (blocks, TILE_ROWS, 16), unless that is NULL. */
LANES_INLINE void forward_rows(const struct mlp_packed *packed, struct tile *tile, uint32_t row,
                               uint32_t rows, float *hidden, uint32_t inputs, uint32_t actions)
{
    const uint32_t stride = (1 + inputs + actions) * LANES_COUNT;
    vf sum[ROWS_AT_ONCE][MLP_ACTIONS_MAX][LANES_PARTS] = {};
    for (uint32_t v = 0; v < packed->blocks; v++) {
#pragma GCC unroll 4
        for (uint32_t p = 0; p < LANES_PARTS; p++) {
            const float *units = packed->weights + v * stride + p * LANES_WIDTH;
#pragma GCC unroll 4
            for (uint32_t r = 0; r < rows; r++) {
                const uint32_t mask = tile->mask[row + r][v];
                vf h = hidden_units(units, tile->x + (row + r) * inputs, mask >> (p * LANES_WIDTH), inputs);
                if (hidden != NULL)
                    lanes_store(hidden + (v * TILE_ROWS + row + r) * LANES_COUNT + p * LANES_WIDTH, h);
#pragma GCC unroll 2
                for (uint32_t a = 0; a < actions; a++)
                    sum[r][a][p] =
                        lanes_fma(lanes_load(units + (1 + inputs + a) * LANES_COUNT), h, sum[r][a][p]);
            }
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (uint32_t a = 0; a < actions; a++)
            tile->sum[a][row + r] = lanes_sum(sum[r][a]);
}

/* Softmax and, if `logs`, its logarithm, of a register's rows, from `row` on; actions ascending. */
LANES_INLINE void softmax_rows(const struct mlp_packed *packed, struct tile *tile, uint32_t row,
                               uint32_t actions, bool logs)
{
    vf z[MLP_ACTIONS_MAX], e[MLP_ACTIONS_MAX];
    const vf scale = lanes_set(packed->scale);
    for (uint32_t a = 0; a < actions; a++)
        z[a] = lanes_fma(lanes_load(tile->sum[a] + row), scale, lanes_set(packed->b2[a]));
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
        lanes_store(tile->probability[a] + row, e[a] / total);
        if (logs)
            lanes_store(tile->log_probability[a] + row, z[a] - log_total);
    }
}

/* The tile's rows, whose inputs and masks are there. */
LANES_INLINE void forward_tile(const struct mlp_packed *packed, struct tile *tile, float *hidden, bool logs,
                               uint32_t inputs, uint32_t actions, uint32_t at_once)
{
    uint32_t row = 0;
    for (uint32_t a = 0; a < actions && tile->rows < TILE_ROWS; a++)
        memset(tile->sum[a], 0, sizeof tile->sum[a]);
    for (; row + at_once <= tile->rows; row += at_once)
        forward_rows(packed, tile, row, at_once, hidden, inputs, actions);
    for (; row < tile->rows; row++)
        forward_rows(packed, tile, row, 1, hidden, inputs, actions);
    for (row = 0; row < tile->rows; row += LANES_WIDTH)
        softmax_rows(packed, tile, row, actions, logs);
}

/* ---- act ---- */

/* Draws a row's mask of `blocks` words, 16 hidden units to a word, 128 units at a time. `key` names the draw
 * (rng.h), `bound` is lanes_draw_group's. Without `draws` all units are kept. `last_word`: the bits of the
 * last word that are units. */
LANES_INLINE void dropout_mask_draw(uint16_t *words, uint32_t blocks, const struct rng_key *key, bool draws,
                                    uint32_t bound, uint16_t last_word)
{
    const vu bounds = lanes_set_u32(bound);
    if (!draws)
        memset(words, 0xff, blocks * sizeof *words);
    for (uint32_t group = 0; draws && group * 8 < blocks; group++) {
        uint32_t bits[8];
        lanes_draw_group(bits, key, group, bounds);
        for (uint32_t v = 0; v < 8 && group * 8 + v < blocks; v++)
            words[group * 8 + v] = (uint16_t)bits[v];
    }
    words[blocks - 1] &= last_word;
}

/* Draws the masks of the tile's rows, for this forward and for the gradient's. */
LANES_INLINE void draw_masks(const struct mlp_packed *packed, const struct draws *draws,
                             const struct tile *tile)
{
    for (uint32_t r = 0; r < tile->rows; r++) {
        const uint32_t i = tile->first + r;
        const struct rng_key key = {draws->seed, draws->environment[i], draws->step[i], draws->episode};
        dropout_mask_draw(tile->mask[r], packed->blocks, &key, packed->draws, packed->draw_bound,
                          packed->last_word);
    }
}

/* Each lane's first action whose cumulated probability is above the row's uniform. The sums only grow, so
 * that is the number of sums, without the last, that are not above it. */
LANES_INLINE vf sample_rows(const struct draws *draws, const struct tile *tile, uint32_t row,
                            uint32_t actions)
{
    const uint32_t left = tile->rows - row, rows = left < LANES_WIDTH ? left : LANES_WIDTH;
    uint32_t environments[LANES_WIDTH] = {0}, steps[LANES_WIDTH] = {0};
    memcpy(environments, draws->environment + tile->first + row, rows * sizeof *environments);
    memcpy(steps, draws->step + tile->first + row, rows * sizeof *steps);
    vu c[4] = {lanes_set_u32((uint32_t)RNG_ACTION << RNG_STREAM_SHIFT), lanes_load_u32(environments),
               lanes_load_u32(steps), lanes_set_u32(draws->episode)};
    lanes_philox(c, (uint32_t)draws->seed, (uint32_t)(draws->seed >> 32));
    vf uniform = __builtin_convertvector((vi)(c[0] >> 8), vf) * 0x1p-24f;
    vf cumulated = {}, action = {};
    for (uint32_t a = 0; a + 1 < actions; a++) {
        cumulated += lanes_load(tile->probability[a] + row);
        action += lanes_where_not_less(uniform, cumulated, lanes_set(1.0f));
    }
    return action;
}

LANES_INLINE void sample_tile(const struct mlp_batch *batch, const struct draws *draws,
                              const struct tile *tile, uint32_t actions)
{
    float chosen[TILE_ROWS];
    for (uint32_t row = 0; row < tile->rows; row += LANES_WIDTH)
        lanes_store(chosen + row, sample_rows(draws, tile, row, actions));
    for (uint32_t r = 0; r < tile->rows; r++)
        batch->actions[batch->row[tile->first + r]] = (int32_t)chosen[r];
}

static void copy_probabilities(const struct tile *tile, uint32_t actions, float *probabilities)
{
    for (uint32_t r = 0; r < tile->rows; r++)
        for (uint32_t a = 0; a < actions; a++)
            probabilities[(size_t)(tile->first + r) * actions + a] = tile->probability[a][r];
}

LANES_INLINE void act_body(const struct mlp_packed *packed, const struct mlp_batch *batch,
                           const struct draws *draws, float *probabilities, uint32_t inputs, uint32_t actions,
                           uint32_t at_once)
{
    struct tile tile;
    for (uint32_t first = 0; first < batch->count; first += TILE_ROWS) {
        begin_tile(&tile, packed, batch, first, inputs);
        draw_masks(packed, draws, &tile);
        forward_tile(packed, &tile, NULL, false, inputs, actions, at_once);
        sample_tile(batch, draws, &tile, actions);
        if (probabilities != NULL)
            copy_probabilities(&tile, actions, probabilities);
    }
}

static void act(const struct mlp_packed *packed, const struct mlp_batch *batch, uint64_t seed,
                uint32_t episode, const uint32_t *environment, const uint32_t *step, float *probabilities)
{
    const struct draws draws = {seed, episode, environment, step};
    LANES_FOR_SHAPE(packed, act_body, batch, &draws, probabilities);
}

/* ---- gradient ---- */

/* dL/dz of the tile's rows, and the same times 1 / (1 - p), which is what reaches W2 and the units. */
struct pulls {
    float plain[MLP_ACTIONS_MAX][TILE_ROWS];
    float scaled[MLP_ACTIONS_MAX][TILE_ROWS];
};

/* The sums of a chunk, rows ascending. */
struct sums {
    double loss;
    float b2[MLP_ACTIONS_MAX];
    float units[BLOCKS_MAX * (1 + MLP_INPUTS_MAX + MLP_ACTIONS_MAX) * LANES_COUNT]; // laid out as the weights
};

/* Fills `pulls` and adds the tile's loss. d(-c log P(t))/dz_a = c (P(a) - [a = t]). */
LANES_INLINE void pull_tile(const struct mlp_batch *batch, const float *coefficient, float scale,
                            struct tile *tile, struct pulls *pulls, struct sums *sums, uint32_t actions)
{
    float c[TILE_ROWS] = {0};
    memcpy(c, coefficient + tile->first, tile->rows * sizeof *c);
    for (uint32_t r = 0; r < tile->rows; r++) {
        const int32_t taken = batch->actions[batch->row[tile->first + r]];
        assert(taken >= 0 && (uint32_t)taken < actions);
        sums->loss -= (double)c[r] * (double)tile->log_probability[taken][r];
        tile->probability[taken][r] -= 1.0f;
    }
    for (uint32_t a = 0; a < actions; a++)
        for (uint32_t row = 0; row < tile->rows; row += LANES_WIDTH) {
            const vf pull = lanes_load(c + row) * lanes_load(tile->probability[a] + row);
            lanes_store(pulls->plain[a] + row, pull);
            lanes_store(pulls->scaled[a] + row, pull * lanes_set(scale));
        }
    for (uint32_t r = 0; r < tile->rows; r++)
        for (uint32_t a = 0; a < actions; a++)
            sums->b2[a] += pulls->plain[a][r];
}

/* Adds the tile's rows to the gradient of one register's units. */
LANES_INLINE void backward_units(const float *weights, const float *hidden, const struct tile *tile,
                                 const struct pulls *pulls, float *sums, uint32_t inputs, uint32_t actions)
{
    vf bias = lanes_load(sums), g1[MLP_INPUTS_MAX] = {}, g2[MLP_ACTIONS_MAX] = {};
#pragma GCC unroll 16
    for (uint32_t i = 0; i < inputs; i++)
        g1[i] = lanes_load(sums + (1 + i) * LANES_COUNT);
#pragma GCC unroll 16
    for (uint32_t a = 0; a < actions; a++)
        g2[a] = lanes_load(sums + (1 + inputs + a) * LANES_COUNT);
    for (uint32_t r = 0; r < tile->rows; r++) {
        const vf h = lanes_load(hidden + r * LANES_COUNT);
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
            g1[i] = lanes_fma(pull, lanes_set(tile->x[r * inputs + i]), g1[i]);
    }
    lanes_store(sums, bias);
#pragma GCC unroll 16
    for (uint32_t i = 0; i < inputs; i++)
        lanes_store(sums + (1 + i) * LANES_COUNT, g1[i]);
#pragma GCC unroll 16
    for (uint32_t a = 0; a < actions; a++)
        lanes_store(sums + (1 + inputs + a) * LANES_COUNT, g2[a]);
}

LANES_INLINE void gradient_tile(const struct mlp_packed *packed, const struct mlp_batch *batch,
                                const float *coefficient, struct tile *tile, struct sums *sums,
                                uint32_t inputs, uint32_t actions, uint32_t at_once)
{
    struct pulls pulls;
    float hidden[BLOCKS_MAX * TILE_ROWS * LANES_COUNT];
    const uint32_t stride = (1 + inputs + actions) * LANES_COUNT;
    forward_tile(packed, tile, hidden, true, inputs, actions, at_once);
    pull_tile(batch, coefficient, packed->scale, tile, &pulls, sums, actions);
    for (uint32_t v = 0; v < packed->blocks; v++)
        for (uint32_t first = 0; first < LANES_COUNT; first += LANES_WIDTH)
            backward_units(packed->weights + v * stride + first, hidden + v * TILE_ROWS * LANES_COUNT + first,
                           tile, &pulls, sums->units + v * stride + first, inputs, actions);
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
                                  uint32_t actions, uint32_t at_once)
{
    struct tile tile;
    struct sums sums;
    const uint32_t hidden = packed->shape.hidden, stride = (1 + inputs + actions) * LANES_COUNT;
    sums.loss = 0;
    memset(sums.b2, 0, sizeof sums.b2);
    memset(sums.units, 0, (size_t)packed->blocks * stride * sizeof *sums.units);
    for (uint32_t first = 0; first < batch->count; first += TILE_ROWS) {
        begin_tile(&tile, packed, batch, first, inputs);
        prefetch_tile(packed, batch, first + TILE_ROWS, inputs);
        gradient_tile(packed, batch, coefficient, &tile, &sums, inputs, actions, at_once);
    }
    for (uint32_t v = 0; v < packed->blocks; v++)
        add_block(sums.units + v * stride, v, hidden, gradient, inputs, actions);
    float *b2 = gradient + (size_t)hidden * (inputs + 1 + actions);
    for (uint32_t a = 0; a < actions; a++)
        b2[a] += sums.b2[a];
    return sums.loss;
}

static double gradient(const struct mlp_packed *packed, const struct mlp_batch *batch,
                       const float *coefficient, float *slab)
{
    return LANES_FOR_SHAPE(packed, gradient_body, batch, coefficient, slab);
}

const struct mlp_lanes LANES_NAME(mlp_lanes) = {.act = act, .gradient = gradient};
