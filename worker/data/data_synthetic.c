/* The tutorial's random data as a reader: there is nothing to read, the loader makes it (synthetic.h). */
#include "worker/data/reader.h"

static enum status probe(uint64_t counts[READER_SPLITS], const struct job *job, struct error *error)
{
    (void)job;
    (void)error;
    counts[DATASET_TRAIN] = counts[DATASET_EVALUATION] = 0;
    return STATUS_OK;
}

static enum status open_split(void **state, uint64_t *count, const struct job *job, enum dataset_split split,
                              struct error *error)
{
    (void)job;
    if (split == DATASET_EVALUATION)
        return error_set(error, STATUS_INVALID, "/data/kind: synthetic data has nothing to evaluate on");
    *state = NULL;
    *count = 0;
    return STATUS_OK;
}

static void close_split(void *state)
{
    (void)state;
}

const struct data_reader data_synthetic = {.probe = probe, .open = open_split, .close = close_split};
