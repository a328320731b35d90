/* A model in training, for the golden tests: one or two params with their gradients and optimizers, trained
 * together and compared with a record step by step. A failing helper fails the running check. */
#ifndef TEST_TRAINING_H
#define TEST_TRAINING_H

#include "kernels/params/optim.h"
#include "kernels/tape/tape.h"
#include "test/golden.h"

#include <stdbool.h>

enum { TRAINING_PARAMS_MAX = 2, TRAINING_PARAMETERS_MAX = 192 };

struct training {
    struct backend *backend;
    uint32_t params_count; /* of the next three arrays */
    struct params *params[TRAINING_PARAMS_MAX];
    struct gradients *gradients[TRAINING_PARAMS_MAX];
    struct optimizer *optimizer[TRAINING_PARAMS_MAX];
    uint32_t count; /* trained parameters of all params, in the record's order */
    struct parameter *parameter[TRAINING_PARAMETERS_MAX];
    double *before[TRAINING_PARAMETERS_MAX]; /* their values before the step's update, canonical */
};

/* Fails the check with the error's text. */
void training_ok(enum status status, const struct error *error);

/* The backends of the golden tests by number: the plug-ins "onednn" and "cuda", and the oracle. NULL, with a
 * line that gives the reason, when the backend has no device here. With TEST_BACKEND in the environment
 * ("cuda"), NULL for every other backend, and that one must have a device. Closed by backend_close. */
enum { TRAINING_PLUGINS = 2, TRAINING_BACKENDS = 3 };
struct backend *training_backend(int number);

/* Makes `count` empty params, with which the model then registers itself. */
void training_init(struct training *training, struct backend *backend, uint32_t count);
void training_fini(struct training *training);

/* Builds all params, and gives them gradients and optimizers. */
void training_build(struct training *training, const struct optimizer_settings *settings);

/* Appends the trained entries `first` to `end` - 1 of params number `which` to the record's order; an `end`
 * of UINT32_MAX means all. */
void training_take(struct training *training, uint32_t which, uint32_t first, uint32_t end);

/* Draws every parameter in the record's order: numbers of the generator at *state, each times the result of
 * `scale`, in float32. Where `scale` sets *constant, the value is the result itself and no number is drawn.
 */
typedef float training_scale(const struct parameter *parameter, bool *constant);
void training_draw(struct training *training, uint64_t *state, training_scale *scale);

/* The scale of a ResNet in the records: sqrt(6 / fan_in) for weights of convolutions and of the classifier,
 * 3 for biases, 1 for batch norms' weights, but 0.1 for a block's last one, whose name ends in `last`. */
float training_resnet_scale(const struct parameter *parameter, const char *last, bool *constant);

/* The generator's next numbers times `scale`, and its next indices in 0 .. limit - 1; malloc'ed. */
float *training_numbers(uint64_t *state, size_t count, float scale);
int32_t *training_indices(uint64_t *state, size_t count, uint32_t limit);

/* After a backward: compares the gradients with the record of `step`, updates unless `update` is false, and
 * compares the parameters' changes with the record. */
void training_step(struct training *training, struct golden *golden, uint32_t step, bool update);

/* After `steps` steps without an update: checks that outputs, loss and gradients of the first step are within
 * bounds, and every later loss and every parameter's change out of bounds. */
void training_expect_unmoved(const struct training *training, const struct golden *golden, uint32_t steps);

/* Compares the running statistics with the record. */
void training_statistics(struct training *training, struct golden *golden, uint32_t step);

/* Compares an output on the tape with the record. */
void training_output(struct tape *tape, struct golden *golden, uint32_t step, const char *name,
                     const struct variable *output);

#endif
