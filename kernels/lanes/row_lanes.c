/* Row-wise functions, compiled once per instruction set; any thread.
 *
 * A row that ends within a register is padded with a neutral value, and only its own elements are written
 * back, so that body and tail go through the same operations. */
#include "kernels/lanes/row_lanes.h"

#include "kernels/lanes/exp_log_tanh.h"

#include <math.h>

/* ---- ends of rows ---- */

LANES_INLINE vf load_some(const float *from, size_t left, float fill)
{
    if (left >= LANES_WIDTH)
        return lanes_load(from);
    float some[LANES_WIDTH];
    for (size_t i = 0; i < LANES_WIDTH; i++)
        some[i] = i < left ? from[i] : fill;
    return lanes_load(some);
}

LANES_INLINE void store_some(float *to, size_t left, vf x)
{
    if (left >= LANES_WIDTH) {
        lanes_store(to, x);
        return;
    }
    float some[LANES_WIDTH];
    lanes_store(some, x);
    memcpy(to, some, left * sizeof *to);
}

/* 16 lanes of doubles, as vectors of half as many lanes as floats have; element i of a row goes to lane i mod
 * 16. */
typedef float vh __attribute__((vector_size(LANES_WIDTH * 2)));
typedef double vd __attribute__((vector_size(LANES_WIDTH * 4)));

struct sum {
    vd lane[2 * LANES_PARTS];
};

LANES_INLINE void sum_add(struct sum *sum, size_t i, vf x)
{
    vd *lane = sum->lane + 2 * (i / LANES_WIDTH % LANES_PARTS);
    vh half[2];
    memcpy(half, &x, sizeof half);
    lane[0] += __builtin_convertvector(half[0], vd);
    lane[1] += __builtin_convertvector(half[1], vd);
}

LANES_INLINE double sum_total(const struct sum *sum)
{
    double lane[LANES_COUNT], total = 0;
    memcpy(lane, sum->lane, sizeof lane);
    for (int l = 0; l < LANES_COUNT; l++)
        total += lane[l];
    return total;
}

/* ---- dropout ---- */

static void row_draw(const struct rng_key *key, uint32_t group, uint32_t bound, uint64_t kept[2])
{
    uint32_t bits[8]; // 16 units each
    if (bound == 0) {
        kept[0] = kept[1] = UINT64_MAX;
        return;
    }
    lanes_draw_group(bits, key, group, lanes_set_u32((bound << 16) - 1));
    for (int h = 0; h < 2; h++)
        kept[h] = (uint64_t)(bits[4 * h] | bits[4 * h + 1] << 16) |
                  (uint64_t)(bits[4 * h + 2] | bits[4 * h + 3] << 16) << 32;
}

static void row_keep(float *y, const float *x, const uint64_t kept[2], float factor, size_t count)
{
    const vf scale = lanes_set(factor);
    for (size_t i = 0; i < count; i += LANES_WIDTH) {
        const uint32_t mask =
            (uint32_t)(kept[i / 64] >> i % 64) & (uint32_t)((UINT64_C(1) << LANES_WIDTH) - 1);
        store_some(y + i, count - i, lanes_keep(mask, load_some(x + i, count - i, 0) * scale));
    }
}

/* ---- softmax ---- */

static float greatest_of(const float *x, size_t count)
{
    vf greatest = lanes_set(-INFINITY);
    for (size_t i = 0; i < count; i += LANES_WIDTH)
        greatest = lanes_max(greatest, load_some(x + i, count - i, -INFINITY));
    float lane[LANES_WIDTH], most = -INFINITY;
    lanes_store(lane, greatest);
    for (int l = 0; l < LANES_WIDTH; l++)
        most = lane[l] > most ? lane[l] : most;
    return most;
}

static double row_exp_sum(const float *x, size_t count, float *greatest)
{
    struct sum sum = {0};
    *greatest = greatest_of(x, count);
    const vf most = lanes_set(*greatest);
    for (size_t i = 0; i < count; i += LANES_WIDTH)
        sum_add(&sum, i, lanes_exp(load_some(x + i, count - i, -INFINITY) - most));
    return sum_total(&sum);
}

static void row_exp_scaled(float *dx, const float *x, size_t count, float greatest, float factor)
{
    const vf most = lanes_set(greatest), by = lanes_set(factor);
    for (size_t i = 0; i < count; i += LANES_WIDTH)
        store_some(dx + i, count - i, lanes_exp(load_some(x + i, count - i, 0) - most) * by);
}

static void row_log_softmax(float *y, const float *x, size_t count)
{
    float greatest;
    const vf log_total = lanes_set((float)log(row_exp_sum(x, count, &greatest))), most = lanes_set(greatest);
    for (size_t i = 0; i < count; i += LANES_WIDTH)
        store_some(y + i, count - i, (load_some(x + i, count - i, 0) - most) - log_total);
}

static void row_log_softmax_backward(float *dx, const float *y, const float *dy, size_t count)
{
    struct sum sum = {0};
    for (size_t i = 0; i < count; i += LANES_WIDTH)
        sum_add(&sum, i, load_some(dy + i, count - i, 0));
    const vf total = lanes_set((float)sum_total(&sum));
    for (size_t i = 0; i < count; i += LANES_WIDTH)
        store_some(dx + i, count - i,
                   load_some(dy + i, count - i, 0) - lanes_exp(load_some(y + i, count - i, 0)) * total);
}

/* ---- the LSTM's gates ---- */

/* 1 / (1 + e^-x), with x kept where e^-x is a normal number. NaN stays NaN. */
LANES_INLINE vf sigmoid(vf x)
{
    vf shifted;
    vf rest = lanes_exp_rest(lanes_max(lanes_set(-87.0f), lanes_min(lanes_set(87.0f), -x)), &shifted);
    return 1.0f / lanes_fma(rest, (vf)(((vu)shifted << 23) + 0x3f800000u), lanes_set(1.0f));
}

LANES_INLINE vf gate_sum(const struct row_lstm *row, size_t gate, size_t i)
{
    const size_t at = gate * row->hidden + i, left = row->hidden - i;
    vf sum = load_some(row->gates + at, left, 0);
    for (int b = 0; b < 2; b++)
        sum += load_some(row->bias[b] + at, left, 0);
    return sum;
}

static void row_lstm_forward(const struct row_lstm *row)
{
    const size_t hidden = row->hidden;
    for (size_t at = 0; at < hidden; at += LANES_WIDTH) {
        const size_t left = hidden - at;
        vf i = sigmoid(gate_sum(row, 0, at)), f = sigmoid(gate_sum(row, 1, at));
        vf g = lanes_tanh(gate_sum(row, 2, at)), o = sigmoid(gate_sum(row, 3, at));
        vf c = lanes_fma(f, load_some(row->c_prev + at, left, 0), i * g);
        store_some(row->gates + at, left, i);
        store_some(row->gates + hidden + at, left, f);
        store_some(row->gates + 2 * hidden + at, left, g);
        store_some(row->gates + 3 * hidden + at, left, o);
        store_some(row->c + at, left, c);
        store_some(row->h + at, left, o * lanes_tanh(c));
    }
}

static void row_lstm_backward(const struct row_lstm *row)
{
    const size_t hidden = row->hidden;
    for (size_t at = 0; at < hidden; at += LANES_WIDTH) {
        const size_t left = hidden - at;
        const float *gates = row->gates + at;
        float *dsums = row->dsums + at;
        vf i = load_some(gates, left, 0), f = load_some(gates + hidden, left, 0);
        vf g = load_some(gates + 2 * hidden, left, 0), o = load_some(gates + 3 * hidden, left, 0);
        vf dh = row->dy == NULL ? lanes_set(0) : load_some(row->dy + at, left, 0);
        if (row->dh != NULL)
            dh += load_some(row->dh + at, left, 0);
        vf c_prev = load_some(row->c_prev + at, left, 0);
        vf t = lanes_tanh(load_some(row->c + at, left, 0));
        vf dc = lanes_fma(dh * o, 1.0f - t * t, load_some(row->dc + at, left, 0));
        store_some(dsums, left, dc * g * (i * (1.0f - i)));
        store_some(dsums + hidden, left, dc * c_prev * (f * (1.0f - f)));
        store_some(dsums + 2 * hidden, left, dc * i * (1.0f - g * g));
        store_some(dsums + 3 * hidden, left, dh * t * (o * (1.0f - o)));
        store_some(row->dc + at, left, dc * f);
    }
}

/* ---- the GRU's gates ---- */

static void row_gru_forward(const struct row_gru *row)
{
    const size_t hidden = row->hidden;
    const float *b = row->bias[0], *d = row->bias[1];
    for (size_t at = 0; at < hidden; at += LANES_WIDTH) {
        const size_t left = hidden - at, z_at = hidden + at, n_at = 2 * hidden + at;
        vf r = load_some(row->gates + at, left, 0) + load_some(b + at, left, 0);
        vf z = load_some(row->gates + z_at, left, 0) + load_some(b + z_at, left, 0);
        vf n = load_some(row->gates + n_at, left, 0) + load_some(b + n_at, left, 0);
        vf candidate = load_some(row->candidate + at, left, 0) + load_some(d + n_at, left, 0);
        r = sigmoid(r + load_some(d + at, left, 0));
        z = sigmoid(z + load_some(d + z_at, left, 0));
        n = lanes_tanh(lanes_fma(r, candidate, n));
        store_some(row->gates + at, left, r);
        store_some(row->gates + z_at, left, z);
        store_some(row->gates + n_at, left, n);
        store_some(row->candidate + at, left, candidate);
        store_some(row->h + at, left, lanes_fma(z, load_some(row->h_prev + at, left, 0) - n, n));
    }
}

static void row_gru_backward(const struct row_gru *row)
{
    const size_t hidden = row->hidden;
    for (size_t at = 0; at < hidden; at += LANES_WIDTH) {
        const size_t left = hidden - at, z_at = hidden + at, n_at = 2 * hidden + at;
        vf r = load_some(row->gates + at, left, 0), z = load_some(row->gates + z_at, left, 0);
        vf n = load_some(row->gates + n_at, left, 0), candidate = load_some(row->candidate + at, left, 0);
        vf dh = load_some(row->dy + at, left, 0) + load_some(row->dh + at, left, 0);
        vf dn = dh * (1.0f - z) * (1.0f - n * n);
        vf dz = dh * (load_some(row->h_prev + at, left, 0) - n) * (z * (1.0f - z));
        store_some(row->dsums + at, left, dn * candidate * (r * (1.0f - r)));
        store_some(row->dsums + z_at, left, dz);
        store_some(row->dsums + n_at, left, dn);
        store_some(row->dcandidate + at, left, dn * r);
        store_some(row->dh + at, left, dh * z);
    }
}

const struct row_lanes LANES_NAME(row_lanes) = {
    .draw = row_draw,
    .keep = row_keep,
    .log_softmax = row_log_softmax,
    .log_softmax_backward = row_log_softmax_backward,
    .exp_sum = row_exp_sum,
    .exp_scaled = row_exp_scaled,
    .lstm_forward = row_lstm_forward,
    .lstm_backward = row_lstm_backward,
    .gru_forward = row_gru_forward,
    .gru_backward = row_gru_backward,
};
