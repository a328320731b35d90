/* A model in training, for the golden tests: one or several params with their gradients and optimizers, moved
 * together, and held to a record step by step. What fails in these helpers fails the running check. */
#ifndef TEST_TRAINING_H
#define TEST_TRAINING_H

#include "kernels/params/optim.h"
#include "kernels/tape/tape.h"
#include "test/golden.h"

#include <stdbool.h>

enum { TRAINING_PARTS_MAX = 2, TRAINING_PARAMETERS_MAX = 192 };

struct training {
    struct backend *backend;
    uint32_t parts;
    struct params *params[TRAINING_PARTS_MAX];
    struct gradients *gradients[TRAINING_PARTS_MAX];
    struct optimizer *optimizer[TRAINING_PARTS_MAX];
    uint32_t count; /* trained parameters of all parts, in the record's order */
    struct parameter *parameter[TRAINING_PARAMETERS_MAX];
    double *before[TRAINING_PARAMETERS_MAX]; /* their values before the step's update, canonical */
};

/* Fails the check with the error's text. */
void training_ok(enum status status, const struct error *error);

/* The backends of the golden tests by number: the plug-ins "onednn" and "cuda", and the oracle. NULL, with a
 * line that says why, where that one has no device here. With TEST_BACKEND in the environment ("cuda"), NULL
 * for all others, and that one must be there. Closed by backend_close. */
enum { TRAINING_PLUGINS = 2, TRAINING_BACKENDS = 3 };
struct backend *training_backend(int number);

/* Begins with `parts` empty params, with which the model then registers itself. */
void training_init(struct training *training, struct backend *backend, uint32_t parts);
void training_fini(struct training *training);

/* Builds all params, and gives them gradients and optimizers. */
void training_build(struct training *training, const struct optimizer_settings *settings);

/* Appends the trained entries of `part` from its entry `first` to before `end` (UINT32_MAX: all that there
 * are) to the record's order. */
void training_take(struct training *training, uint32_t part, uint32_t first, uint32_t end);

/* Draws every parameter in the record's order: numbers of the generator at *state, each times what `scale`
 * answers, in float32. Where it sets *constant, the answer stands alone and no number is drawn. */
typedef float training_scale(const struct parameter *parameter, bool *constant);
void training_draw(struct training *training, uint64_t *state, training_scale *scale);

/* For a ResNet, as the records have it: weights of convolutions and of the classifier sqrt(6 / fan_in),
 * biases 0.1, batch norms' weights 1, but 0.1 where the name ends in `last`, a block's last one. */
float training_resnet_scale(const struct parameter *parameter, const char *last, bool *constant);

/* The generator's next numbers times `scale`, and its next indices in 0 .. limit - 1; malloc'ed. */
float *training_numbers(uint64_t *state, size_t count, float scale);
int32_t *training_indices(uint64_t *state, size_t count, uint32_t limit);

/* After a walk: holds the gradients to the record of `step`; updates, unless `update` is false; holds the
 * parameters' changes to the record. */
void training_step(struct training *training, struct golden *golden, uint32_t step, bool update);

/* What a record must say of `steps` steps without an update: outputs, loss and gradients of the first are
 * right, and from then on every loss and every parameter's change are out of bounds. */
void training_expect_unmoved(const struct training *training, const struct golden *golden, uint32_t steps);

/* Holds the running statistics to the record. */
void training_statistics(struct training *training, struct golden *golden, uint32_t step);

/* An output on the tape, held to the record. */
void training_output(struct tape *tape, struct golden *golden, uint32_t step, const char *name,
                     const struct variable *output);

#endif
