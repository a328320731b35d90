/* SAC's policies: Gaussians whose draws pass through tanh, so that every component of an action is in [-1,
 * 1]. The gradients go through the draw (the reparametrization of Haarnoja et al., arXiv 1812.05905).
 *
 * The formulas are those of Stable-Baselines3's sac/policies.py and distributions.py. With n draws of
 * normal(0, 1), and for each component d of a row,
 *
 *     a = tanh(x),   log P(a) = sum_d log N_d - log(1 - a_d^2 + 1e-6)
 *
 * Diagonal (SquashedDiagGaussianDistribution): the network gives the means m and then the log_stds l, which
 * are clamped to [-20, 2]; l takes no gradient beyond that: x_d = m_d + exp(l_d) n_d,   log N_d = -n_d^2 / 2
 * - l_d - log(2 pi) / 2
 *
 * State-dependent (gSDE, arXiv 2005.05719; StateDependentNoiseDistribution with squash_output, full_std and
 * learn_features): the network gives the means alone. log_std is a parameter (features, components), n
 * (features, components) is the same for all rows of a batch, and h (features) is what the actor's last
 * hidden layer makes of a row: x_d = m_d + e_d,   e_d = sum_f h_f s_fd n_fd,   v_d = sum_f h_f^2 s_fd^2 +
 * 1e-6 log N_d = -e_d^2 / (2 v_d) - log(v_d) / 2 - log(2 pi) / 2 with s = exp(log_std), or expln: s =
 * exp(log_std) where log_std <= 0, else log(1 + (log_std + 1e-6)) + 1.
 *
 * Means are clipped to [-clip_mean, clip_mean] before that, and take no gradient where they reach a bound:
 * torch.nn.Hardtanh, which Stable-Baselines3 puts behind gSDE's means with 2.
 *
 * Where this differs from Stable-Baselines3: its log N reads (x - m) / s, where rounding has lost digits of n
 * if s is small; and gSDE's x is atanh(a) there, with a clipped to 1 - 1.2e-7. Here log N reads the n and e
 * that were drawn. In exact arithmetic both are the same up to |x| = 8.3. Beyond that, gSDE's x takes no
 * gradient there, and ours goes on with the formula.
 *
 * The same bits: a row's results depend on the row, the parameters and n alone, not on the rows around it or
 * the instruction set. Sums over components, features and rows ascend. exp, log and tanh are
 * kernels/lanes/exp_log_tanh.h's. A NaN stays in its row. test/oracle/squashed_ref.h is the oracle in double.
 *
 * One thread at a time uses a squashed. Only squashed_new allocates; nothing blocks. */
#ifndef KERNELS_POLICY_SQUASHED_H
#define KERNELS_POLICY_SQUASHED_H

#include "kernels/policy/layers.h"

enum { SQUASHED_COMPONENTS_MAX = 256 };

struct squashed_shape {
    uint32_t components; // of an action
    uint32_t features;   // of h; 0: diagonal, above: state-dependent
    bool expln;          // state-dependent: s is expln of log_std, else exp
    float clip_mean;     // 0: means are not clipped
};

struct squashed;

/* `shape` is within its bounds (asserted: DENSE_WIDTH_MAX features), and is copied. STATUS_NO_MEMORY. */
enum status squashed_new(struct squashed **out, const struct squashed_shape *shape, struct error *error);
void squashed_free(struct squashed *squashed);

/* State-dependent: computes with this log_std and this n from now on, both (features, components) and copied.
 * noise NULL: zeros, so that actions are the means'. Once before all else. */
void squashed_load(struct squashed *squashed, const float *log_std, const float *noise);

/* What a batch's rows are made of. Of all matrices but the features', the named columns alone are read or
 * written, so that they may be a part of a wider matrix: actions are a part of a critic's inputs. */
struct squashed_rows {
    uint32_t count;               // at most DENSE_CHUNK_ROWS (asserted)
    struct dense_matrix z;        // (count, outputs)
    struct dense_matrix noise;    // (count, components) n, diagonal; at NULL: zeros
    struct dense_matrix features; // (count, features) h, state-dependent
};

/* Writes the actions (count, components) and, unless NULL, their log-probabilities (count). */
void squashed_act(struct squashed *squashed, const struct squashed_rows *rows, struct dense_matrix actions,
                  float *log_probability);

/* Where dL/d … is written. */
struct squashed_pulls {
    struct dense_matrix z;        // (count, outputs)
    struct dense_matrix features; // (count, features) state-dependent
    float *log_std;               // (features, components) likewise; the sum over the rows
    bool adds;                    // log_std: added to what is there
};

/* `actions` are those that squashed_act gave these rows. d_actions (count, components) is dL/d actions; at
 * NULL: zeros. d_log_probability is dL/d log P, the same for all rows. */
void squashed_pull(struct squashed *squashed, const struct squashed_rows *rows, struct dense_matrix actions,
                   struct dense_matrix d_actions, float d_log_probability,
                   const struct squashed_pulls *pulls);

#endif
