/* Slabs: description and memory. */
#include "kernels/params/slab.h"

struct tensor slab_describe(const struct backend *backend, size_t elements, const char *name)
{
    return (struct tensor){.shape = SHAPE1((uint32_t)elements),
                           .dtype = backend->ops->dtype,
                           .bytes = elements * dtype_bytes(backend->ops->dtype),
                           .name = name};
}

enum status slab_new(struct tensor *slab, struct backend *backend, struct error *error)
{
    if (slab->bytes == 0)
        return STATUS_OK;
    slab->data = backend->source.take(backend->source.context, slab->bytes);
    if (slab->data == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %s of %zu bytes on %s", slab->name,
                         slab->bytes, backend->ops->name);
    return backend_fill(backend, slab, 0, error);
}

void slab_free(struct tensor *slab, struct backend *backend)
{
    if (slab->data != NULL)
        backend->source.give(backend->source.context, slab->data, slab->bytes);
    slab->data = NULL;
}

void *slab_address(const struct tensor *slab, size_t offset)
{
    return (char *)slab->data + offset * dtype_bytes(slab->dtype);
}
