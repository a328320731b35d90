/* The backend that only stores: copies between host arrays and tensors of float32. The backend's thread. */
#include "kernels/backend_memory.h"

#include <stdio.h>
#include <string.h>

static enum status memory_open(struct backend *backend, const struct backend_settings *settings,
                               struct error *error)
{
    (void)settings;
    (void)error;
    backend->source = arena_host;
    snprintf(backend->text, sizeof backend->text, "host memory");
    return STATUS_OK;
}

static void memory_close(struct backend *backend)
{
    (void)backend;
}

static enum status memory_upload(struct backend *backend, struct tensor *to, enum dtype dtype,
                                 const void *from, struct error *error)
{
    (void)backend;
    (void)error;
    const size_t count = shape_elements(&to->shape);
    float *out = to->data;
    if (dtype == DTYPE_F32)
        memcpy(out, from, count * sizeof *out);
    else
        for (size_t i = 0; i < count; i++)
            out[i] = (float)((const double *)from)[i];
    return STATUS_OK;
}

static enum status memory_download(struct backend *backend, const struct tensor *from, enum dtype dtype,
                                   void *to, struct error *error)
{
    (void)backend;
    (void)error;
    const size_t count = shape_elements(&from->shape);
    const float *in = from->data;
    if (dtype == DTYPE_F32)
        memcpy(to, in, count * sizeof *in);
    else
        for (size_t i = 0; i < count; i++)
            ((double *)to)[i] = (double)in[i];
    return STATUS_OK;
}

static enum status memory_fill(struct backend *backend, struct tensor *tensor, double value,
                               struct error *error)
{
    (void)backend;
    (void)error;
    float *to = tensor->data;
    const size_t count = shape_elements(&tensor->shape);
    for (size_t i = 0; i < count; i++)
        to[i] = (float)value;
    return STATUS_OK;
}

const struct backend_ops memory_ops = {.name = "memory",
                                       .dtype = DTYPE_F32,
                                       .host = true,
                                       .open = memory_open,
                                       .close = memory_close,
                                       .upload = memory_upload,
                                       .download = memory_download,
                                       .fill = memory_fill};
