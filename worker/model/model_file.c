/* Compares a job's model, as names and shapes, with a file. The command's process, one thread. */
#include "worker/model/model_file.h"

#include "kernels/params/params_file.h"
#include "worker/model/classifier.h"

enum status model_file_check(const char *path, const struct job *job, const struct rnn_config *rnn,
                             struct error *error)
{
    static const struct backend_ops names_only = {.dtype = DTYPE_F32};
    struct backend backend = {.ops = &names_only, .source = arena_host};
    struct params *params = NULL;
    struct classifier *classifier = NULL;
    struct params_file *file = NULL;
    enum status status = params_new(&params, &backend, error);
    if (status == STATUS_OK)
        status =
            rnn != NULL ? rnn_register(rnn, params, error) : classifier_new(&classifier, job, params, error);
    if (status == STATUS_OK)
        status = params_file_open(&file, params, path_of(path), &PARAMS_RANGE_ALL, true, error);
    params_file_close(file);
    classifier_free(classifier);
    params_free(params);
    return status;
}
