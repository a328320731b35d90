/* The tutorial's random data as a reader. There is nothing to read: the loader draws the batches
 * (synthetic.h). */
#include "worker/data/dataset_internal.h"

static enum status synthetic_probe(uint64_t counts[DATASET_SPLITS], const struct job *job,
                                   struct error *error)
{
    (void)job;
    (void)error;
    counts[DATASET_TRAIN] = counts[DATASET_EVALUATION] = 0;
    return STATUS_OK;
}

static enum status synthetic_open_split(void **state, uint64_t *count, const struct job *job,
                                        enum dataset_split split, struct error *error)
{
    (void)job;
    if (split == DATASET_EVALUATION)
        return error_set(error, STATUS_INVALID, "/data/kind: synthetic data has nothing to evaluate on");
    *state = NULL;
    *count = 0;
    return STATUS_OK;
}

static void synthetic_close_split(void *state)
{
    (void)state;
}

const struct dataset_reader dataset_synthetic = {
    .probe = synthetic_probe, .open = synthetic_open_split, .close = synthetic_close_split};
