/* The room of parameters: one flat slab per model, with names; gradients, optimizers and files beside it.
 *
 *     entry         a named tensor of a model, or a counter
 *     trained       an entry that an optimizer moves; all of them lie in one slab
 *     buffer        an entry that no optimizer moves: a running statistic; in a slab of their own
 *     counter       an int64 on the host: num_batches_tracked
 *     slab          one flat tensor that holds many entries
 *     gradients     a slab parallel to the trained one, also used for an optimizer's moments
 *     to lay out    to give each entry its offset
 *     to place      to give each entry its address
 *     fingerprint   a hash by which two processes see that their slabs agree
 *
 *     params.h        a model's entries: registering, first values, memory, reading, writing
 *     gradients.h     slabs parallel to the trained one: gradients and moments
 *     optim.h         optimizers                         params_file.h   a model to files and back
 *
 * It includes kernels/, kernels/base/ and kernels/safetensors/. The tape and worker/ include it.
 *
 * A model registers its tensors in PyTorch's order, under PyTorch's names ("layer1.0.conv1.weight"), with the
 * distribution of their first values; params_build lays them out and draws them. There are three kinds:
 * trained parameters (one slab, which optimizers move), buffers (running statistics, a slab of their own),
 * and counters (num_batches_tracked: int64 on the host). Every entry begins at a multiple of 64 bytes; the
 * gap between two entries is zero and stays zero under every optimizer.
 *
 * The slabs are in the backend's memory, in its dtype. An entry begins in canonical layout; params_adopt
 * gives a trained one the layout that the backend's forward asked for, together with its gradients and
 * moments. params_read, params_write and files always use the canonical layout.
 *
 * Belongs to one thread at a time. Only params_new, params_add, params_build and params_begin allocate. */
#ifndef KERNELS_PARAMS_PARAMS_H
#define KERNELS_PARAMS_PARAMS_H

#include "kernels/kernels.h"

enum parameter_kind { PARAMETER_TRAINED, PARAMETER_BUFFER, PARAMETER_COUNTER };

/* The distribution of an entry's first values. */
enum init_kind {
    INIT_CONSTANT, /* value */
    INIT_UNIFORM,  /* in ±value */
    INIT_NORMAL,   /* mean 0, standard deviation value */
};
struct init {
    enum init_kind kind;
    double value;
};

struct params;

struct parameter {
    const char *name; /* owned by params */
    enum parameter_kind kind;
    uint32_t index; /* in order of registration, over all kinds */
    struct init init;
    struct tensor tensor; /* its part of the slab; a counter's has no data */
    size_t offset;        /* elements from its slab's begin */
    int64_t counter;      /* PARAMETER_COUNTER's value */
    struct params *params;
};

enum status params_new(struct params **out, struct backend *backend, struct error *error);
void params_free(struct params *params);

/* Registers an entry; before params_build. `name` is copied. *out stays valid as long as the params.
 * STATUS_INVALID: a name that is registered already, or a shape of too many elements. The caller sees to the
 * rest: the name is none that safetensors reserves, a counter is a scalar, only a trained entry is drawn. */
enum status params_add(struct params *params, const char *name, enum parameter_kind kind, struct shape shape,
                       struct init init, struct parameter **out, struct error *error);

/* For params that hold some of a larger model's entries: their first trained entry is number `first` among
 * the model's trained entries, so that it gets the value that it has in the whole model. Before params_build
 * and params_begin. Default: 0. */
void params_count_from(struct params *params, uint32_t first);

/* Lays out the slabs and draws every entry, rounded to float32 on every backend. Draws come from stream
 * RNG_INIT, keyed by (seed, element, index among the *trained* entries). Uniform: (2 rng_uniform_float - 1)
 * of word 0, times the bound. Normal: by Box and Muller ("A note on the generation of random normal
 * deviates", 1958) from rng_uniform_double of words 0, 1 and of words 2, 3. */
enum status params_build(struct params *params, uint64_t seed, struct error *error);

/* ---- slabs in the caller's memory ----
 *
 * params_lay_out instead of params_build fixes every offset and takes no memory. The caller then places
 * ranges of entries in memory of its own (a shared segment, one of several versions), as often as it likes;
 * an entry is usable while it is placed. Gradients of such params are placed too, or own their memory
 * (gradients_new). The backend's memory must be the host's. Placing sets addresses alone: nothing is copied
 * or cleared, entries keep their layouts, and the caller keeps the gaps between entries zero. Of
 * these functions, only params_begin allocates: a temporary buffer as large as the largest entry. */

/* Errors as params_build. No entry can be added afterwards. */
enum status params_lay_out(struct params *params, struct error *error);

/* Element counts of the trained slab and of the buffers', padded so that each slab is a multiple of 64 bytes.
 * Only after params_lay_out or params_build. */
size_t params_elements(const struct params *params);
size_t params_buffer_elements(const struct params *params);

/* Places the trained entries with an index in [first, end): each at slab + its offset. `slab` is the address
 * that element 0 would have, aligned to 64 bytes; it may lie outside the mapping when only a later range is
 * placed. Entries that are only read may be placed in read-only memory. */
void params_place(struct params *params, uint32_t first, uint32_t end, const void *slab);
void params_place_buffers(struct params *params, const void *buffers);

/* Unplaces every entry. Call it before the memory is freed. */
void params_displace(struct params *params);

/* Gives the entries with an index in [first, end) their first values, drawn as params_build draws them, in
 * their layouts; counters too. All of these entries are placed. STATUS_NO_MEMORY. */
enum status params_begin(struct params *params, uint64_t seed, uint32_t first, uint32_t end,
                         struct error *error);

/* Gives every trained entry the layout that the last forward asked for (tensor.wanted), and its gradients and
 * moments too, without moving a byte. Call it before values are set: it reinterprets the bytes. That forward
 * must be a recording one: inference may ask for other layouts. Does nothing on a backend without layouts. */
void params_adopt(struct params *params);

/* A number that is equal for params with the same entries in the same order and layouts, and hence at the
 * same offsets. It is FNV-1a with 64 bits (begin 0xcbf29ce484222325, prime 0x100000001b3) over these bytes,
 * for each entry of any kind in order of registration: the name and a zero; kind (enum parameter_kind), rank,
 * and each size, as 32 bits, lowest byte first; the backend's hash of the layout as 64 bits, lowest byte
 * first, 0 for the canonical one. */
uint64_t params_fingerprint(const struct params *params);

/* The fingerprint that these params would have if every layout were canonical. */
uint64_t params_fingerprint_canonical(const struct params *params);

uint32_t params_count(const struct params *params);
struct parameter *params_at(struct params *params, uint32_t index);
struct parameter *params_find(struct params *params, const char *name); /* NULL: none */
struct backend *params_backend(const struct params *params);

/* The trained slab as one flat tensor of rank 1. For params in the caller's memory its data is NULL unless
 * the last params_place placed every trained entry. */
const struct tensor *params_slab(const struct params *params);

/* The buffers' slab, likewise. */
const struct tensor *params_buffers(const struct params *params);

/* One entry's values, canonical. A counter is read and written through its field. */
enum status params_read(struct params *params, const struct parameter *parameter, enum dtype dtype,
                        void *values, struct error *error);
enum status params_write(struct params *params, struct parameter *parameter, enum dtype dtype,
                         const void *values, struct error *error);

#endif
