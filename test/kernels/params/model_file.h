/* A whole model to one safetensors file and back. */
#ifndef TEST_KERNELS_PARAMS_MODEL_FILE_H
#define TEST_KERNELS_PARAMS_MODEL_FILE_H

#include "kernels/params/params_file.h"

/* Errors as params_file_save. */
static inline enum status model_file_save(struct params *params, const char *path, struct error *error)
{
    const struct params_saving saving = {.params = params, .contents = PARAMS_RANGE_ALL};
    return params_file_save(path_of(path), &saving, error);
}

/* Every entry has to be there, counters too. Errors as params_file_open and params_file_load. */
static inline enum status model_file_load(struct params *params, const char *path, struct error *error)
{
    struct params_file *file;
    enum status status = params_file_open(&file, params, path_of(path), &PARAMS_RANGE_ALL, false, error);
    if (status == STATUS_OK)
        status = params_file_load(file, NULL, &PARAMS_RANGE_ALL, error);
    params_file_close(file);
    return status;
}

#endif
