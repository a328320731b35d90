/* From a job's /device to a backend: which plug-in is loaded, and the line that says so. */
#include "worker/device.h"

#include "kernels/base/log.h"

static uint32_t gpu_number;

void device_number(uint32_t number)
{
    gpu_number = number;
}

bool device_is_gpu(const struct job *job)
{
    static int found = -1; // with `auto`: not asked yet
    if (job->device == JOB_DEVICE_AUTO && found < 0)
        found = backend_finds_gpu();
    return job->device == JOB_DEVICE_AUTO ? found > 0 : job->device == JOB_DEVICE_GPU;
}

enum status device_open_gpu(struct backend **out, const struct job *job, struct error *error)
{
    const struct backend_settings settings = {.threads = 1, .device = gpu_number};
    const bool must = job->device == JOB_DEVICE_GPU;
    struct error why = {0};
    *out = NULL;
    if (job->device == JOB_DEVICE_CPU)
        return STATUS_OK;
    enum status status = backend_load_device(out, DEVICE_GPU, &settings, NULL, must ? error : &why);
    if (must)
        return status;
    log_info("device: %s%s", status == STATUS_OK ? (*out)->text : "the CPU; ", why.text);
    return STATUS_OK;
}

enum status device_open(struct backend **out, const struct job *job, uint32_t threads, bool logs,
                        struct error *error)
{
    static const enum device devices[] = {
        [JOB_DEVICE_AUTO] = DEVICE_AUTO, [JOB_DEVICE_CPU] = DEVICE_CPU, [JOB_DEVICE_GPU] = DEVICE_GPU};
    const struct backend_settings settings = {.threads = threads, .device = gpu_number};
    const enum device device = devices[job->device];
    struct error why = {0};
    enum status status = backend_load_device(out, device, &settings, &why, error);
    if (status == STATUS_OK && device == DEVICE_AUTO && logs)
        log_info("device: %s%s%s", (*out)->text, why.text[0] != '\0' ? "; " : "", why.text);
    return status;
}
