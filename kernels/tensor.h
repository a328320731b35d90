/* Shapes, dtypes and tensors: the arguments of the operations in kernels/op.h.
 *
 * A tensor is a small struct that describes memory. The memory belongs to a tape's arena (activations,
 * gradients), to a parameter slab (kernels/params/params.h), or to the caller. Copying the struct copies the
 * description. The memory is the backend's: host memory for the CPU backends, device memory for the GPU. Only
 * backend_upload and backend_download copy between the host and a device.
 *
 * `layout` is the order of the elements. NULL is canonical: dense, row-major, last dimension fastest, as
 * PyTorch's contiguous tensors. Any other value is a token of the backend that made the tensor; only that
 * backend interprets the bytes, and equal tokens mean equal layouts. Files, the wire and tests see canonical
 * order alone. */
#ifndef KERNELS_TENSOR_H
#define KERNELS_TENSOR_H

#include "kernels/base/arena.h"
#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_F32 = 1,
    DTYPE_F64 = 2, /* the oracle's storage; no other backend computes in it */
    DTYPE_I32 = 3, /* class and token indices, actions, the words of a draw */
    /* DTYPE_BF16 = 4 is kept free: weights and activations in it, sums in f32. */
};

enum { SHAPE_RANK_MAX = 4, SHAPE_TEXT_BYTES = 64 };

/* The largest number of elements that a tensor may have: 2^31 - 1, so that an index fits in int32 on every
 * backend (cuDNN's limit). */
#define SHAPE_ELEMENTS_MAX INT32_MAX

/* rank 0 is a scalar: one element. size[rank..] is not read. */
struct shape {
    uint32_t rank;
    uint32_t size[SHAPE_RANK_MAX];
};

#define SHAPE0() ((struct shape){0})
#define SHAPE1(a) ((struct shape){1, {(a)}})
#define SHAPE2(a, b) ((struct shape){2, {(a), (b)}})
#define SHAPE3(a, b, c) ((struct shape){3, {(a), (b), (c)}})
#define SHAPE4(a, b, c, d) ((struct shape){4, {(a), (b), (c), (d)}})

struct tensor {
    struct shape shape;
    enum dtype dtype;
    const void *layout; /* NULL: canonical; else the backend's token */
    const void *wanted; /* of a parameter that a forward had to repack: the layout that would have spared
                           it; see params_adopt */
    void *data;         /* NULL in an output: the backend allocates it */
    size_t bytes;       /* of the memory at `data` */
    const char *name;   /* for messages: "layer1.0.conv1.weight", "input"; may be NULL; not owned */
};

/* Elements of the shape, or 0 when the product exceeds SHAPE_ELEMENTS_MAX or a size is zero. */
size_t shape_elements(const struct shape *shape);

bool shape_equal(const struct shape *a, const struct shape *b);

/* "20x3x64x64"; "scalar" for rank 0. Returns `text`. */
const char *shape_text(const struct shape *shape, char text[SHAPE_TEXT_BYTES]);

/* Bytes of one element. */
size_t dtype_bytes(enum dtype dtype);
const char *dtype_name(enum dtype dtype);

/* Room for "weight \"layer1.0.conv1.weight\" of shape 64x64x3x3". */
enum { TENSOR_TEXT_BYTES = 192 };

/* A tensor's name in messages; `role` is its name in the operation's rule. Returns `text`. */
const char *tensor_text(const char *role, const struct tensor *tensor, char text[TENSOR_TEXT_BYTES]);

/* A part of a canonical tensor, of that shape, from element `first` on. The memory is the whole's. */
struct tensor tensor_part(const struct tensor *whole, size_t first, struct shape shape);

/* Takes a new tensor from the arena: canonical, not initialized. `name` is kept, not copied.
 * STATUS_NO_MEMORY. */
enum status tensor_new(struct tensor *out, struct arena *arena, struct shape shape, enum dtype dtype,
                       const char *name, struct error *error);

#endif
