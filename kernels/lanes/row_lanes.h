/* Row-wise functions, one table per instruction set: dropout's draws, log-softmax, the gates of LSTM and GRU.
 *
 * The same bits on every set: exponentials are kernels/lanes/lanes.h's, and sums run in 16 lanes of doubles
 * that are added in ascending order. A row's result depends on the row alone. Any alignment. Pure functions.
 */
#ifndef KERNELS_LANES_ROW_LANES_H
#define KERNELS_LANES_ROW_LANES_H

#include "kernels/base/rng.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ROW_DRAW_UNITS = 128 };

/* One row of one step of an LSTM layer; (4, hidden) is i, f, g, o. */
struct row_lstm {
    size_t hidden;
    float *gates; /* (4, hidden): forward: in, sums of products; out, the gates. Backward: the gates */
    const float *bias[2]; /* (4, hidden) each; forward */
    const float *c_prev;  /* (hidden) */
    float *c;             /* (hidden): written by the forward, read by the backward */
    float *h;             /* (hidden): written by the forward */
    const float *dy;      /* (hidden) or NULL: what comes from this step's output */
    const float *dh;      /* (hidden) or NULL: what comes from the next step */
    float *dc;            /* (hidden): in, of c; out, of c_prev */
    float *dsums;         /* (4, hidden): written by the backward */
};

/* One row of one step of a GRU layer; (3, hidden) is r, z, n. A backward may have gates and dsums in one
 * place, and candidate and dcandidate. */
struct row_gru {
    size_t hidden;
    float *gates;     /* (3, hidden): forward: in, sums of products, of n those of x alone; out, the gates.
                         Backward: the gates */
    float *candidate; /* (hidden): n's products of h; the forward adds their bias */
    const float *bias[2]; /* (3, hidden) of x's and h's products; forward */
    const float *h_prev;  /* (hidden) */
    float *h;             /* (hidden): written by the forward */
    const float *dy;      /* (hidden): what comes from this step's output */
    float *dh;            /* (hidden): in, what comes from the next step; out, what goes to h_prev by z */
    float *dsums;         /* (3, hidden): written by the backward */
    float *dcandidate;    /* (hidden): written by the backward */
};

struct row_lanes {
    /* The keep bits of units 128 group … + 127 (kernels/kernels.h, "Draws"): unit j's is bit j % 64 of word
     * j / 64. `bound`: round(65536 p). */
    void (*draw)(const struct rng_key *key, uint32_t group, uint32_t bound, uint64_t kept[2]);
    /* y = kept ? scale x : 0, of up to 128 units. */
    void (*keep)(float *y, const float *x, const uint64_t kept[2], float scale, size_t count);

    /* y = log-softmax of x. */
    void (*log_softmax)(float *y, const float *x, size_t count);
    /* dx, by y and dy. */
    void (*log_softmax_backward)(float *dx, const float *y, const float *dy, size_t count);
    /* The row's greatest value, and the sum of exp(x - greatest). */
    double (*exp_sum)(const float *x, size_t count, float *greatest);
    /* dx = factor exp(x - greatest) */
    void (*exp_scaled)(float *dx, const float *x, size_t count, float greatest, float factor);

    void (*lstm_forward)(const struct row_lstm *row);
    void (*lstm_backward)(const struct row_lstm *row);
    void (*gru_forward)(const struct row_gru *row);
    void (*gru_backward)(const struct row_gru *row);
};

/* Indexed by enum isa (kernels/lanes/isa.h). */
extern const struct row_lanes row_lanes_baseline, row_lanes_avx2, row_lanes_avx512;

#endif
