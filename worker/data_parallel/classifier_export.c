/* Writes the ResNet of a checkpoint to an ONNX file, for `coalesced export`. The command's thread runs this.
 */
#include "worker/data_parallel/classifier_export.h"

#include "kernels/backend.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/model/classifier.h"
#include "worker/model/onnx.h"

enum status classifier_export(const char *path, const char *checkpoint, const struct job *job,
                              struct error *error)
{
    const struct backend_settings settings = {.threads = 1};
    struct backend *backend = NULL;
    struct params *params = NULL;
    struct classifier *classifier = NULL;
    enum status status = backend_open(&backend, &memory_ops, &settings, error);
    if (status == STATUS_OK)
        status = params_new(&params, backend, error);
    if (status == STATUS_OK)
        status = classifier_new(&classifier, job, params, error);
    if (status == STATUS_OK)
        status = params_build(params, 0, error);
    const struct checkpoint_values values = {.params = params};
    if (status == STATUS_OK)
        status = checkpoint_load_model(path_of(checkpoint), &values, error);
    if (status == STATUS_OK)
        status = onnx_write_classifier(path, job, params, error);
    classifier_free(classifier);
    params_free(params);
    backend_close(backend);
    return status;
}
