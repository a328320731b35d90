/* The policy for images as a struct: private to policy_images*.c.
 *
 *     policy_images.c          opening, pieces of rows, acting      policy_images_learn.c    one step
 *     policy_images_values.c   saving and restoring */
#ifndef WORKER_MODEL_POLICY_IMAGES_H
#define WORKER_MODEL_POLICY_IMAGES_H

#include "kernels/params/gradients.h"
#include "kernels/params/optim.h"
#include "kernels/policy/head.h"
#include "worker/model/policy_cnn.h"
#include "worker/model/policy_internal.h"

struct policy_images {
    struct params *params;
    struct gradients *gradients;
    struct optimizer *optimizer;
    struct tape *tape;
    struct head *head;
    struct surrogate *surrogate; // with values
    uint32_t height, width, channels, outputs;
    uint32_t piece_rows; // of a piece, at most
    bool gaussian, has_value;
    uint32_t places, act_rows;      // with values: one for each environment; those of a piece
    uint32_t learn_rows;            // with values: what every other piece is filled up to
    float *images;                  // (piece_rows, channels, height, width)
    float *output, *pulls;          // (piece_rows, outputs) and dL/d of them
    float *value, *value_pulls;     // (piece_rows) and dL/d of them
    float *log_probability, *own;   // (piece_rows) of the rows' own actions, and dL/d of them
    float *entropy, *entropy_pulls; // (piece_rows) and dL/d of them
    float *log_std, *log_std_pulls; // (components)
    /* (piece_rows) each, of the rows that act in a piece: what struct policy_rows and struct dense_draw have,
     * and the place in the piece. */
    uint32_t *row, *environment, *step, *place;
};

/* Rows that the tape computes together. */
struct images_piece {
    struct policy_rows rows;
    uint32_t filled;       // black images behind, or between, the rows make them so many
    const uint32_t *place; // (rows.count) of each row, ascending; NULL: row i is at place i
};

/* The piece of the batch from row `first` on, for all but acting with values. */
struct images_piece images_piece_of(const struct policy_images *net, const struct policy_rows *rows,
                                    uint32_t first);

/* Records the piece's forward, and reads the outputs that are `wanted` (enum policy_cnn_wanted) into
 * net->output and net->value, place by place. Their variables have not been taken by an operation. */
struct policy_cnn_outputs images_record(const struct policy *policy, const struct images_piece *piece,
                                        unsigned wanted);

struct head_rows images_head_rows(const struct policy_images *net, const struct policy_rows *rows);

/* log_std as it is now, to the head. */
enum status images_load_head(struct policy_images *net, struct error *error);

/* ---- the kind's functions of the same names ---- */

enum status policy_images_learn(struct policy *policy, const struct policy_rows *rows,
                                const float *coefficient, uint32_t episode, double *loss,
                                policy_progress *progress, void *context, struct error *error);
enum status policy_images_review(struct policy *policy, const struct policy_rows *rows,
                                 policy_progress *progress, void *context, struct error *error);
enum status policy_images_improve(struct policy *policy, const struct policy_rows *rows,
                                  const struct policy_targets *targets, const struct policy_step *step,
                                  struct policy_losses *losses, struct error *error);
enum status policy_images_save(struct policy *policy, struct policy_values *values, struct error *error);
enum status policy_images_restore(struct policy *policy, const struct policy_values *values,
                                  struct error *error);

#endif
