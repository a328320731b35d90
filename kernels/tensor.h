/* Shapes and tensors: what the operations of kernels/kernels.h read and write.
 *
 * A tensor is a small struct that describes memory which somebody else owns: a tape's arena (activations,
 * gradients), a parameter slab (kernels/params/params.h), or the caller. Copying the struct copies the
 * description. Its memory is the backend's: host memory for the CPU backends, device memory for the GPU; only
 * tensor-moving functions of kernels.h (backend_upload, backend_download) cross that border.
 *
 * `layout` says how the elements lie. NULL is canonical: dense, row-major, last dimension fastest, the order
 * of PyTorch's contiguous tensors. Anything else is a token of the backend that made the tensor, and only
 * that backend may interpret the bytes; equal tokens mean equal layouts. Files, the wire and tests see
 * canonical order alone. */
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
    const void *wanted; /* set by a forward on a parameter that it had to repack: the layout which would
                           have spared that; see params_adopt */
    void *data;         /* NULL where an output is to be allocated by the backend */
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

/* How messages call a tensor: `role` is its name in the operation's rule. Returns `text`. */
const char *tensor_text(const char *role, const struct tensor *tensor, char text[TENSOR_TEXT_BYTES]);

/* A tensor that can be read: a shape without zeros that does not overflow, a known dtype, and, where `data`
 * is wanted, memory that is large enough (as far as a canonical layout tells). `what` begins the message:
 * the operation's name. */
enum status tensor_check(const char *what, const char *role, const struct tensor *tensor, bool data,
                         struct error *error);

/* A new tensor in the arena, canonical, not initialized. `name` is kept, not copied. */
enum status tensor_new(struct tensor *out, struct arena *arena, struct shape shape, enum dtype dtype,
                       const char *name, struct error *error);

#endif
