/* A policy's head alone, for a network whose outputs are computed elsewhere: a tape computes those of the
 * CNN. Formulas, draws and masks are those of kernels/policy/dense.h.
 *
 * Outputs are logits, component after component, or means; row i of the outputs is row i of the batch. The
 * same bits on every instruction set and for every number of rows.
 *
 * One thread at a time uses a head. Only head_new allocates; nothing blocks. */
#ifndef KERNELS_POLICY_HEAD_H
#define KERNELS_POLICY_HEAD_H

#include "kernels/policy/dense.h"

struct head;

/* Of `shape`, only gaussian, components and choices are read. log_std is 0 at first. Errors: isa_choose's;
 * STATUS_NO_MEMORY. */
enum status head_new(struct head **out, const struct dense_shape *shape, struct error *error);
void head_free(struct head *head);

/* Sets log_std (components). Gaussian only. */
void head_load(struct head *head, const float *log_std);

/* A batch with its outputs. Observations are not read. */
struct head_rows {
    struct dense_batch batch; // at most DENSE_CHUNK_ROWS rows (asserted)
    const float *outputs;     // (count, outputs)
};

/* Chooses an action for each row, and writes it. `draw` NULL: greedily. log_probability: (count) or NULL. */
void head_act(struct head *head, const struct head_rows *rows, const struct dense_draw *draw,
              float *log_probability);

/* The log-probabilities (count) of the batch's own actions, and the entropies (count). entropy: NULL, not
 * wanted. */
void head_evaluate(struct head *head, const struct head_rows *rows, float *log_probability, float *entropy);

/* By dL/d log-probability of each row's own action, and dL/d entropy (NULL: all 0), writes dL/d outputs
 * (count, outputs), and of a Gaussian dL/d log_std (components), summed over the rows, ascending.
 * pulls->value is not read. */
void head_pull(struct head *head, const struct head_rows *rows, const struct dense_pulls *pulls,
               float *d_outputs, float *d_log_std);

#endif
