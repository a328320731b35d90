/* A parameter server's update, compiled once per instruction set; any thread.
 *
 * The pass is bound by memory: it reads and writes each number once. Stores bypass the caches: nothing reads
 * the result here, and a line that is written whole need not be fetched first. For ResNet-50 with 5
 * contributions this makes the pass a quarter faster. A processor follows few streams at a time: for more
 * than GROUP contributions the sums of a block stay in the first cache while the groups are added one after
 * the other. Multiplication and addition are not fused, so that with one contribution the bits are those of
 * backend_sgd.
 *
 * A NaN or an infinity in a contribution makes the mean one. So only means are checked. A mean that is
 * not finite starts a search for the contribution at fault. */
#include "kernels/lanes/sgd_round_lanes.h"

#include "kernels/lanes/lanes.h"

enum { BLOCK = 1024, GROUP = 8 };

/* The sign bit of a lane that is not finite: the exponent's ones carry over. */
LANES_INLINE vu not_finite_bits(vf x)
{
    return ((vu)x & 0x7fffffffu) + 0x00800000u;
}

static bool any_sign(vu bits)
{
    uint32_t lane[LANES_WIDTH], all = 0;
    memcpy(lane, &bits, sizeof lane);
    for (int l = 0; l < LANES_WIDTH; l++)
        all |= lane[l];
    return all >> 31 != 0;
}

static bool is_finite(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7f800000u) != 0x7f800000u;
}

/* In 16 lanes, from element `at` on: `count` contributions, added in their order to what is at `sum` (NULL:
 * to nothing). */
LANES_INLINE void add_group(vf lane[LANES_PARTS], const float *const *gradients, uint32_t count, size_t at,
                            const float *sum)
{
    uint32_t k = 0;
    const float *from = sum != NULL ? sum : gradients[k++] + at;
    for (int p = 0; p < LANES_PARTS; p++)
        lane[p] = lanes_load(from + p * LANES_WIDTH);
    for (; k < count; k++)
        for (int p = 0; p < LANES_PARTS; p++)
            lane[p] += lanes_load(gradients[k] + at + p * LANES_WIDTH);
}

/* The sums of a block's contributions but for those of the last group: in `sum`. Returns how many that were.
 */
static uint32_t sum_groups(const struct sgd_round_lanes *arrays, size_t at, float sum[BLOCK])
{
    uint32_t k = 0;
    for (; arrays->contributions - k > GROUP; k += GROUP)
        for (size_t i = 0; i < BLOCK; i += LANES_COUNT) {
            vf lane[LANES_PARTS];
            add_group(lane, arrays->gradients + k, GROUP, at + i, k == 0 ? NULL : sum + i);
            for (int p = 0; p < LANES_PARTS; p++)
                lanes_store(sum + i + p * LANES_WIDTH, lane[p]);
        }
    return k;
}

/* Whether there is a velocity, and whether it is read. */
enum momentum { MOMENTUM_NONE, MOMENTUM_FIRST, MOMENTUM_MOVES };

/* A vector of means to its parameters, which it returns, and velocity. */
LANES_INLINE vf move(const struct sgd_round_lanes *arrays, enum momentum kind, size_t at, vf mean)
{
    if (kind == MOMENTUM_MOVES)
        mean = lanes_set(arrays->momentum) * lanes_load(arrays->velocity + at) + mean;
    if (kind != MOMENTUM_NONE)
        lanes_stream(arrays->velocity_out + at, mean);
    const vf moved = lanes_load(arrays->parameters + at) - lanes_set(arrays->lr) * mean;
    lanes_stream(arrays->parameters_out + at, moved);
    return moved;
}

/* A block; or-s into *strange what is not finite. */
LANES_INLINE void update_block(const struct sgd_round_lanes *arrays, enum momentum kind, size_t at,
                               vu *strange)
{
    float sum[BLOCK];
    const uint32_t done = sum_groups(arrays, at, sum), left = arrays->contributions - done;
    const vf count = lanes_set((float)arrays->contributions);
    for (size_t i = 0; i < BLOCK; i += LANES_COUNT) {
        vf lane[LANES_PARTS];
        add_group(lane, arrays->gradients + done, left, at + i, done == 0 ? NULL : sum + i);
        for (int p = 0; p < LANES_PARTS; p++) {
            const vf moved = move(arrays, kind, at + i + (size_t)p * LANES_WIDTH, lane[p] / count);
            *strange |= not_finite_bits(moved);
        }
    }
}

/* The same for what is left behind the last whole block, one by one. */
static bool update_rest(const struct sgd_round_lanes *arrays, enum momentum kind, size_t at, size_t end)
{
    bool finite = true;
    for (; at < end; at++) {
        float moved = arrays->gradients[0][at];
        for (uint32_t k = 1; k < arrays->contributions; k++)
            moved += arrays->gradients[k][at];
        moved /= (float)arrays->contributions;
        if (kind == MOMENTUM_MOVES)
            moved = arrays->momentum * arrays->velocity[at] + moved;
        if (kind != MOMENTUM_NONE)
            arrays->velocity_out[at] = moved;
        moved = arrays->parameters[at] - arrays->lr * moved;
        finite = finite && is_finite(moved);
        arrays->parameters_out[at] = moved;
    }
    return finite;
}

/* True when all parameters are finite. */
LANES_INLINE bool update(const struct sgd_round_lanes *arrays, enum momentum kind, size_t first, size_t count)
{
    vu strange = {0};
    const size_t end = first + count, body = end - count % BLOCK;
    for (size_t at = first; at < body; at += BLOCK)
        update_block(arrays, kind, at, &strange);
    const bool finite = update_rest(arrays, kind, body, end);
    _mm_sfence(); // stores past the caches keep no order with others by themselves
    return finite && !any_sign(strange);
}

static uint32_t first_strange(const struct sgd_round_lanes *arrays, size_t first, size_t count)
{
    for (uint32_t k = 0; k < arrays->contributions; k++)
        for (size_t i = first; i < first + count; i++)
            if (!is_finite(arrays->gradients[k][i]))
                return k;
    return arrays->contributions;
}

uint32_t LANES_NAME(sgd_round_lanes_update)(const struct sgd_round_lanes *arrays, size_t first, size_t count)
{
    bool finite;
    if (arrays->velocity_out == NULL)
        finite = update(arrays, MOMENTUM_NONE, first, count);
    else if (arrays->first)
        finite = update(arrays, MOMENTUM_FIRST, first, count);
    else
        finite = update(arrays, MOMENTUM_MOVES, first, count);
    return finite ? UINT32_MAX : first_strange(arrays, first, count);
}
