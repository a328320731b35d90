/* Parameters: one flat slab per model, with names.
 *
 * A model registers its tensors in PyTorch's order, under PyTorch's names ("layer1.0.conv1.weight"), with the
 * distribution that they begin from; params_build lays them out and draws them. Three kinds stand beside each
 * other: trained parameters (the slab that optimizers move, and to which gradients and moments are parallel),
 * buffers (running statistics: a slab of their own), and counters (num_batches_tracked: int64 on the host).
 * Every entry begins at a multiple of 64 bytes; what lies between two entries is zero and stays zero under
 * every optimizer.
 *
 * The slabs lie in the backend's memory, in its dtype. An entry begins in canonical layout; params_adopt
 * gives a trained one the layout that the backend's forward asked for, together with every gradient and
 * moment that belongs to it. params_read, params_write and the files are canonical always.
 *
 * Belongs to one thread at a time. Nothing but params_new, _add, _build, _begin, gradients_new, its unplaced
 * twin and the file functions allocates. */
#ifndef KERNELS_PARAMS_PARAMS_H
#define KERNELS_PARAMS_PARAMS_H

#include "kernels/kernels.h"

enum parameter_kind { PARAMETER_TRAINED, PARAMETER_BUFFER, PARAMETER_COUNTER };

/* How an entry begins. */
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

/* Registers an entry; before params_build. `name` is copied. STATUS_INVALID: a bad shape, a name that is
 * there already or that safetensors reserves, or anything but a trained entry that is to be drawn. Returns
 * through *out a pointer that lives as long as params. */
enum status params_add(struct params *params, const char *name, enum parameter_kind kind, struct shape shape,
                       struct init init, struct parameter **out, struct error *error);

/* For params that are a part of a larger model: its first trained entry is number `first` among the model's
 * trained entries, so that the parts begin with the values which the whole would begin with. Before
 * params_build and params_begin; 0 without. */
void params_count_from(struct params *params, uint32_t first);

/* Lays out the slabs and draws every entry, rounded to float32 on every backend, from stream RNG_INIT, keyed
 * by (seed, element, index among the *trained* entries): uniform from word 0 as 2 rng_uniform_float - 1 times
 * the bound; normal by Box and Muller ("A note on the generation of random normal deviates", 1958) from
 * rng_uniform_double of words 0, 1 and of words 2, 3. */
enum status params_build(struct params *params, uint64_t seed, struct error *error);

/* ---- slabs in somebody else's memory ----
 *
 * params_lay_out instead of params_build fixes every offset but takes no memory. The entries are then placed
 * where the caller has room (a segment of shared memory, one of several versions), as often as it likes, in
 * ranges: an entry is usable while it has a place. Gradients of such params are placed too, or have memory of
 * their own (gradients_new). For backends whose memory is the host's. Placing sets addresses and nothing
 * else: nothing is copied or cleared, entries keep their layouts, and whoever gives the memory sees to it
 * that gaps between entries hold zeros. None of it allocates but params_begin, for the time of the call, as
 * much as the largest entry takes. */

/* STATUS_INVALID as params_build. No entries can be added afterwards. */
enum status params_lay_out(struct params *params, struct error *error);

/* Elements of the trained slab and of the buffers' (multiples of 64 bytes), laid out or built. */
size_t params_elements(const struct params *params);
size_t params_buffer_elements(const struct params *params);

/* Trained entries with an index in [first, end): each at slab + its offset. `slab` is where element 0 lies or
 * would lie, aligned to 64 bytes. What is only read may be placed in memory that cannot be written. */
void params_place(struct params *params, uint32_t first, uint32_t end, const void *slab);
void params_place_buffers(struct params *params, const void *buffers);

/* Takes every entry's place away, before the memory goes. */
void params_displace(struct params *params);

/* Gives the entries with an index in [first, end) their first values, in their places and layouts, drawn as
 * params_build draws them; counters too. All of these entries have a place. STATUS_NO_MEMORY. */
enum status params_begin(struct params *params, uint64_t seed, uint32_t first, uint32_t end,
                         struct error *error);

/* Gives every trained entry that wants it (tensor.wanted, left by a forward) that layout, with all gradients,
 * without moving a byte: for entries that hold nothing yet. The forward must be one that records for these
 * gradients: inference may want other layouts. Does nothing on a backend without layouts. */
void params_adopt(struct params *params);

/* A number that two params share when they have the same entries in the same order and layouts, and hence at
 * the same offsets. It is FNV-1a with 64 bits (begin 0xcbf29ce484222325, prime 0x100000001b3) over these
 * bytes, for each entry in order of registration, all kinds: the name and a zero; kind (enum parameter_kind),
 * rank, and each size, as 32 bits, lowest byte first; the backend's hash of the layout as 64 bits, lowest
 * byte first, 0 for a canonical one. */
uint64_t params_fingerprint(const struct params *params);

uint32_t params_count(const struct params *params);
struct parameter *params_at(struct params *params, uint32_t index);
struct parameter *params_find(struct params *params, const char *name); /* NULL: none */
struct backend *params_backend(const struct params *params);

/* The trained slab as one flat tensor of rank 1. Of params in somebody else's memory it has data only while
 * the last params_place placed every trained entry. */
const struct tensor *params_slab(const struct params *params);

/* One entry's values, canonical. A counter takes and gives DTYPE_F64 or goes by its field. */
enum status params_read(struct params *params, const struct parameter *parameter, enum dtype dtype,
                        void *values, struct error *error);
enum status params_write(struct params *params, struct parameter *parameter, enum dtype dtype,
                         const void *values, struct error *error);

#endif
