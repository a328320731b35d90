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
 *     layers.h   a chain of dense layers of any depth           squashed.h    SAC's distributions
 *     dense.h    a policy of such chains, and a head alone      surrogate.h   PPO's objective
 *     mlp.h      the tutorial's network with dropout            orthogonal.h  orthogonal first values
 *
 * This header: a policy of dense layers. Its shape and parameters; what its rows choose, and what they learn.
 *
 * There are two kernels because the tutorial's network is small: one hidden layer with dropout, at most 16
 * inputs, one Categorical of at most 16 choices. mlp.h computes such a row in one fused pass. A single row
 * then takes 0.4 of the time that this kernel needs, and the sums have another order. This kernel computes
 * every other policy of dense layers, without dropout, and gives log-probabilities, entropies and values
 * beside the actions. Convolutions go through kernels/tape.
 *
 *     h_0 = the observation,   h_l = f(W_l h_{l-1} + b_l), f tanh or ReLU,   z = W h_last + b (the head)
 *
 * and once more with layers of its own for the value network, whose head has one output, the value; or that
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

#include "kernels/policy/layers.h"

/* ---- the shape ----
 *
 * layers.h has the other bounds; DENSE_OUTPUTS_MAX is that of all choices of all components. */

enum { DENSE_COMPONENTS_MAX = 256 };

struct dense_shape {
    uint32_t inputs;                  /* floats of an observation */
    uint32_t layers;                  /* hidden layers; 0: the head reads the observation */
    uint32_t width[DENSE_LAYERS_MAX]; /* (layers) units of each */
    /* The hidden layers of a value network of its own, likewise; not read without one. */
    uint32_t value_layers, value_width[DENSE_LAYERS_MAX];
    enum dense_activation activation;
    bool value; /* has a value network: hidden layers, and one output */
    bool
        pulls_inputs; /* the inputs are features, DENSE_WIDTH_MAX at most, and dense_gradient pulls at them */
    bool shared;      /* with `value`: its output reads the policy's hidden layers, and it has none */
    bool gaussian;    /* an action is floats of a diagonal Gaussian; else choices of Categoricals */
    bool state_dependent; /* the Gaussian's deviations depend on the last hidden layer, of which there is one
                           */
    uint32_t components;  /* of an action */
    uint32_t choices[DENSE_COMPONENTS_MAX]; /* (components) of each Categorical; not read for a Gaussian */
};

/* The policy network's outputs: the sum of all choices, or a Gaussian's means. Also the bytes of a row's
 * mask.
 */
uint32_t dense_outputs(const struct dense_shape *shape);

/* Whether the policy is a Gaussian whose deviations depend on the state. */
bool dense_explores(const struct dense_shape *shape);

enum dense_network_kind { DENSE_POLICY, DENSE_VALUE, DENSE_NETWORKS };

/* Hidden layers of a network: the value network's own, or the shared ones. */
uint32_t dense_layers(const struct dense_shape *shape, enum dense_network_kind network);

/* What the network's head reads: units of its last hidden layer, or the inputs. */
uint32_t dense_features(const struct dense_shape *shape, enum dense_network_kind network);

/* ---- the list of parameters ----
 *
 * The names and their order are those of the state_dict of Stable-Baselines3's ActorCriticPolicy, with a
 * hidden layer every other number as torch.nn.Sequential counts them:
 *
 *     log_std                              (components)           Gaussian only; (last width, components)
 *                                                                 where the deviations depend on the state
 *     mlp_extractor.policy_net.0.weight    (width, inputs)        … .0.bias, .2.weight, .2.bias, …
 *     mlp_extractor.value_net.0.weight     (width, inputs)        … with a value network of its own
 *     action_net.weight                    (outputs, last width)  action_net.bias (outputs)
 *     value_net.weight                     (1, last width)        value_net.bias (1); with a value network,
 *                                                                 whose last width it is
 *
 * Where policy and value share the hidden layers, these are mlp_extractor.shared_net.0.weight … alone, as
 * Stable-Baselines3 called them until 1.7. */

enum dense_parameter_kind { DENSE_WEIGHT, DENSE_BIAS, DENSE_LOG_SIGMA };

enum { DENSE_PARAMETERS_MAX = 1 + DENSE_NETWORKS * (DENSE_LAYERS_MAX + 1) * 2, DENSE_NAME_BYTES = 48 };

struct dense_parameter {
    char name[DENSE_NAME_BYTES];
    enum dense_parameter_kind kind;
    enum dense_network_kind network;
    uint32_t layer;          /* 0 …; that of the head is dense_layers */
    uint32_t rank, shape[2]; /* as PyTorch has it */
    uint32_t inputs;         /* of the layer, for its weight and bias: PyTorch's fan_in */
    size_t offset, count;    /* floats: where it begins in the flat array, and how many it has */
};

/* Fills `out`, ascending by offset and without gaps; returns how many there are. */
uint32_t dense_parameters(const struct dense_shape *shape, struct dense_parameter out[DENSE_PARAMETERS_MAX]);

/* ---- the weights ---- */

struct dense;

/* `shape` is within its bounds (asserted), and is copied. Parameters are zeros until dense_load_parameter.
 * Takes about 8 bytes for each parameter. STATUS_NO_MEMORY. */
enum status dense_new(struct dense **out, const struct dense_shape *shape, struct error *error);
void dense_free(struct dense *dense);

/* Computes with parameter number `number` of the list of dense_parameters as it is in `parameters`, the flat
 * array of all, from now on; it is copied. Several threads may do that at once, each for other parameters. No
 * other thread computes with `dense` meanwhile. */
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
    const float *features; // (count, stride) in the batch's order, read in the place of observations: what a
                           // recurrent layer has made of them. NULL: there are none
    size_t stride;         // of `features`, in floats
    const struct dense_normalizer *normalizer; // of `observations`; NULL: they are read as they are
    const uint8_t *mask; // (rows, outputs), not 0: allowed, at least one of each component. NULL: all are
    int32_t *choices;    // (rows, components) Categoricals: 0 … choices - 1
    float *actions;      // (rows, components) Gaussian
};

/* Writes columns [first, first + width) of what the networks read of the batch (count, inputs) to rows
 * `stride` floats apart. For a recurrent layer, which reads the observations in the dense layers' place. */
void dense_gather(const struct dense_batch *batch, uint32_t inputs, uint32_t first, uint32_t width, float *at,
                  size_t stride);

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

/* Chooses an action for each row, of at most DENSE_CHUNK_ROWS (asserted), and writes it. `draw` NULL:
 * greedily. */
void dense_act(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
               const struct dense_draw *draw, const struct dense_results *results);

/* Of the batch's own actions, which are within their choices (asserted), for at most DENSE_CHUNK_ROWS rows
 * (asserted). A forbidden action has log-probability -infinity. `work` then holds what dense_gradient needs
 * of the networks whose results were wanted: where log-probability and entropy are NULL, not of the policy's;
 * where value is NULL, not of the value network. Where the values alone are wanted, actions and masks are not
 * read. */
void dense_evaluate(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
                    const struct dense_results *results);

/* dL/d of each result of the rows that were evaluated, in their order. NULL: all 0. surrogate.h writes them;
 * here they are only read. */
struct dense_pulls {
    float *log_probability; // (count)
    float *entropy;         // (count)
    float *value;           // (count); NULL without a value network
    float *features;        // NULL; or (count, the batch's stride): here dense_gradient writes dL/d features
};

/* dL/d of every parameter of the networks that are pulled at, for the batch that was last evaluated with
 * `work`; in `gradient`, which has the parameters' order: added to what that holds, or, `adds` false, in its
 * place. The batch's arrays still hold what they held then, and so does `dense`. The chunk is summed by
 * itself, rows ascending, and added at the end: calling this chunk after chunk gives one order of summation.
 * Where the hidden layers are shared, their pull is the policy's and then the value's. */
void dense_gradient(const struct dense *dense, struct dense_work *work, const struct dense_pulls *pulls,
                    float *gradient, bool adds);

/* ---- a head alone ----
 *
 * For a network whose outputs are computed elsewhere: on a backend. Outputs are logits, component after
 * component, or means; row i of the outputs is row i of the batch. One thread at a time uses a head. */

struct head;

/* A Gaussian's needs head_load before all else. STATUS_NO_MEMORY. */
enum status head_new(struct head **out, const struct dense_shape *shape, struct error *error);
void head_free(struct head *head);

/* Sets log_std, as large as in the list of parameters. Gaussian only. */
void head_load(struct head *head, const float *log_std);

/* A batch with its outputs. Observations are not read. */
struct head_rows {
    struct dense_batch batch; // at most DENSE_CHUNK_ROWS rows (asserted)
    const float *outputs;     // (count, outputs)
    const float *features;    // (count, features); read only where the deviations depend on the state
};

/* Chooses an action for each row, and writes it. `draw` NULL: greedily. log_probability: (count) or NULL. */
void head_act(struct head *head, const struct head_rows *rows, const struct dense_draw *draw,
              float *log_probability);

/* The log-probabilities (count) of the batch's own actions, and the entropies (count). entropy: NULL, not
 * wanted. */
void head_evaluate(struct head *head, const struct head_rows *rows, float *log_probability, float *entropy);

/* By dL/d log-probability of each row's own action, and dL/d entropy (NULL: all 0), writes dL/d outputs
 * (count, outputs), and of a Gaussian dL/d log_std, summed over the rows, ascending. pulls->value is not
 * read. */
void head_pull(struct head *head, const struct head_rows *rows, const struct dense_pulls *pulls,
               float *d_outputs, float *d_log_std);

#endif
