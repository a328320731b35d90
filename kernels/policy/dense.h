/* The room of the policy's kernels on the CPU. It includes kernels/base/ and kernels/lanes/; worker/model
 * computes with it.
 *
 *     row          one observation, its action, and what is known of both
 *     batch        rows, as indices into the caller's arrays
 *     chunk        at most 256 rows of a batch; sums run within a chunk, then over the chunks
 *     head         the last layer, and what it makes of the features: a distribution over actions
 *     features     the units of the last hidden layer
 *     component    one number of an action
 *     choice       one of the values of a Categorical component
 *     mask         which choices a row allows
 *     keep bits    which hidden units dropout keeps in a row
 *     draw         random numbers, keyed by (seed, environment, step, episode)
 *     pull         the gradient of the loss at a result: dL/d log-probability, entropy or value
 *
 *     dense.h         dense layers of any depth           mlp.h         the tutorial's network with dropout
 *     dense_shape.h   shapes, parameters, first values    surrogate.h   PPO's objective
 *     head.h          a head alone                        orthogonal.h  orthogonal first values
 *
 * This header: a policy of dense layers; what its rows choose, and what they learn.
 *
 * There are two kernels because the tutorial's network is small: one hidden layer with dropout, at most 16
 * inputs, one Categorical of at most 16 choices. mlp.h computes such a row in one fused pass. A single row
 * then takes 0.4 of the time that this kernel needs, and the sums have another order. This kernel computes
 * every other policy of dense layers, without dropout, and gives log-probabilities, entropies and values
 * beside the actions. Convolutions go through kernels/tape.
 *
 *     h_0 = the observation,   h_l = f(W_l h_{l-1} + b_l), f tanh or ReLU,   z = W h_last + b (the head)
 *
 * and once more with weights of its own for the value network, whose head has one output, the value; or that
 * head reads the policy's h_last (shape->shared). z is the logits of all Categoricals, component after
 * component, or the means of a diagonal Gaussian.
 *
 * Categorical, over the choices a that the row's mask allows (all, without masks):
 *     log P(a) = z_a - max z - log sum exp(z - max z),   H = -sum P(a) log P(a)
 * A forbidden choice has P = 0, is never chosen, and takes no gradient. Where the mask leaves one choice,
 * log P and H are exactly 0. Drawn: the smallest a with u < P(0) + … + P(a), u = rng_uniform_float of word 0
 * of block c of stream RNG_ACTION for component c; where rounding leaves none, the last a with P above 0.
 * Greedy: the greatest logit, the smallest a among equals.
 *
 * Gaussian, with sigma_d = exp(log_std_d), the same in every state: t_d = (a_d - z_d) / sigma_d,
 *     log p(a) = sum -t_d^2 / 2 - log sigma_d - log(2 pi) / 2,   H = sum log sigma_d + log(2 pi e) / 2
 * Drawn: a_d = z_d + sigma_d n, with n number d % 4 of block d / 4 of RNG_ACTION as kernels/lanes/normal.h
 * makes four of a block. Greedy: z_d. Actions are not clipped: the caller clips what an environment sees, and
 * keeps what was drawn.
 *
 * Gaussian with state-dependent exploration (gSDE; Raffin, Kober and Stulp, arXiv 2005.05719, as in
 * Stable-Baselines3): over the last hidden layer h, of F units,
 *     sigma_d^2 = sum_f h_f^2 exp(log_std_fd)^2 + 1e-6
 * and h takes no gradient through it. Drawn: a_d = z_d + sum_f h_f exp(log_std_fd) n_fd, with n_fd number
 * f % 4 of block d * ceil(F / 4) + f / 4 of stream RNG_NOISE, keyed by the environment and the step at which
 * these n were last drawn anew (struct dense_draw): an environment explores one way for a while.
 *
 * An action's log-probability and entropy are the sums over its components, ascending.
 *
 * The same bits. A row's results depend on the parameters and on the row alone: not on the number of rows,
 * the rows around it, the thread or the instruction set (baseline, AVX2, AVX-512). Each output of a layer is
 * its bias and then one chain of fused multiply-adds over the inputs, ascending; exp, log and tanh are
 * kernels/lanes/exp_log_tanh.h's. So dense_evaluate gives an action exactly the log-probability that
 * dense_act gave it. A NaN in a row's observation, or a NaN parameter, leaves a NaN in its results; the
 * action is one that the mask allows even then. test/oracle/dense_ref.h is the oracle in double.
 *
 * A `struct dense` holds the parameters, a `struct dense_work` the activations of up to 256 rows. Any number
 * of threads may compute with one dense, each with a work of its own. Only the functions named _new allocate;
 * nothing blocks. */
#ifndef KERNELS_POLICY_DENSE_H
#define KERNELS_POLICY_DENSE_H

#include "kernels/base/status.h"
#include "kernels/policy/dense_shape.h"

enum { DENSE_CHUNK_ROWS = 256 };

/* ---- parameters ---- */

struct dense;

/* `shape` is copied; parameters are zeros until dense_load. Takes about 8 bytes for each parameter. Errors:
 * those of dense_check_shape and isa_choose; STATUS_NO_MEMORY. */
enum status dense_new(struct dense **out, const struct dense_shape *shape, struct error *error);
void dense_free(struct dense *dense);

/* Computes with these parameters (dense_shape.h) from now on; they are copied. No other thread computes
 * with `dense` meanwhile. */
void dense_load(struct dense *dense, const float *parameters);

/* The same of parameter number `number` of the list of dense_parameters alone; several threads may do that at
 * once, each for other parameters. */
void dense_load_parameter(struct dense *dense, const float *parameters, uint32_t number);

/* ---- rows ---- */

struct dense_work;

/* Belongs to `dense`, which outlives it. Takes up to 1 KiB for each unit of all layers, and 1 MiB.
 * STATUS_NO_MEMORY.
 */
enum status dense_work_new(struct dense_work **out, const struct dense *dense, struct error *error);
void dense_work_free(struct dense_work *work);

/* What the networks read in place of an observation x: (x - mean) * scale, clipped to [-limit, limit]. */
struct dense_normalizer {
    const float *mean, *scale; // (inputs)
    float limit;
};

/* A batch: row i of it is row `row[i]` of the arrays, which the caller owns. Actions are in `choices` or in
 * `actions`, as the shape says; the other one is not read. */
struct dense_batch {
    uint32_t count;
    const uint32_t *row;       // (count) index into the arrays
    const float *observations; // (rows, inputs); NULL: they are `bytes`
    const uint8_t *bytes;      // (rows, inputs) integers 0 … 255, which stand for their 255th parts
    const struct dense_normalizer *normalizer; // of `observations`; NULL: they are read as they are
    const uint8_t *mask; // (rows, outputs), not 0: allowed, at least one of each component. NULL: all are
    int32_t *choices;    // (rows, components) Categoricals: 0 … choices - 1
    float *actions;      // (rows, components) Gaussian
};

/* What keys the draws of row i of a batch: (seed, environment[i], step[i], episode). */
struct dense_draw {
    uint64_t seed;
    uint32_t episode;
    const uint32_t *environment, *step; // (count)
    uint32_t noise_steps; // state-dependent exploration is drawn anew at each multiple of so many steps; 0:
                          // at step 0 alone
};

/* What is computed for each row, in the batch's order. NULL: not wanted. */
struct dense_results {
    float *log_probability; // (count) of the row's action
    float *entropy;         // (count)
    float *value;           // (count); NULL without a value network
};

/* Chooses an action for each row, and writes it. `draw` NULL: greedily. Any number of rows. */
void dense_act(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
               const struct dense_draw *draw, const struct dense_results *results);

/* Of the values alone; actions and masks are not read. For a state that is bootstrapped from. Any number of
 * rows. */
void dense_value(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
                 float *value);

/* Of the batch's own actions, which are within their choices (asserted), for at most DENSE_CHUNK_ROWS rows
 * (asserted). A forbidden action has log-probability -infinity. `work` then holds what dense_gradient needs
 * of the networks whose results were wanted: where log-probability and entropy are NULL, not of the policy's;
 * where value is NULL, not of the value network. */
void dense_evaluate(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
                    const struct dense_results *results);

/* dL/d of each result of the rows that were evaluated, in their order. NULL: all 0. */
struct dense_pulls {
    const float *log_probability; // (count)
    const float *entropy;         // (count)
    const float *value;           // (count); NULL without a value network
};

/* dL/d of every parameter of the networks that are pulled at, for the batch that was last evaluated with
 * `work`; in `gradient`, which has the parameters' order: added to what that holds, or, `adds` false, in its
 * place. The batch's arrays still hold what they held then, and so does `dense`. The chunk is summed by
 * itself, rows ascending, and added at the end: calling this chunk after chunk gives one order of summation.
 * Where the hidden layers are shared, their pull is the policy's and then the value's. */
void dense_gradient(const struct dense *dense, struct dense_work *work, const struct dense_pulls *pulls,
                    float *gradient, bool adds);

#endif
