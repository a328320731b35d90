/* Writes a checkpoint's policy to an ONNX file. Runs on the command's thread. */
#include "worker/reinforce/policy_export.h"

#include "worker/checkpoint/checkpoint.h"
#include "worker/model/onnx.h"
#include "worker/model/policy.h"
#include "worker/reinforce/policy_shape.h"

enum status policy_export(const char *path, const char *checkpoint, const struct job *job,
                          const struct environment_spec *spec, struct error *error)
{
    struct policy_values values = {0};
    const struct policy_config config = policy_config_of(job, spec);
    enum status status = policy_check(&config, false, error);
    if (status == STATUS_OK)
        status = policy_values_open(&values, &config, error);
    const struct checkpoint_values of = {.params = values.params};
    if (status == STATUS_OK)
        status = checkpoint_load_model(path_of(checkpoint), &of, error);
    if (status == STATUS_OK)
        status = onnx_write_policy(path, &config, values.params, error);
    policy_values_close(&values);
    return status;
}
