/* The parameter-server job kind. This header has the calls between trainers and parameter servers, and how a
 * model lies in memory and in messages. The room includes kernels/, the frame, worker/job, net, model, data
 * and checkpoint; daemon/ includes its schedule and its evaluation.
 *
 *     shard          the part of the model that one server owns
 *     image          a whole model or gradient as it is sent
 *     slot           a place for one image in a server's memory
 *     version        the model after so many updates
 *     contribution   one trainer's gradient of one step
 *     round          the contributions that make the next version (round.h)
 *     late           a contribution that came after its round; dropped and counted
 *     share          the part of the held-out data that one trainer evaluates (evaluation.h)
 *     chunk          the elements of an image that one message carries
 *
 * ---- The image ----
 * Models and gradients are sent as an image: the trained slab of kernels/params/params.h (P float32), then
 * the buffers' slab (B float32, the running statistics of batch norms), one behind the other; P and B are
 * multiples of 16. An element of the model has one index in [0, P + B) everywhere. A model's image holds
 * parameters and running statistics; a contribution's holds gradients in [0, P) and, in [P, P + B), the
 * batch's own mean and unbiased variance where the running ones stand.
 *
 * Server j owns a contiguous range of entries (shards_of). The statistics are server 0's.
 *
 * ---- Where it lies ----
 * Whether a trainer and a server share memory is decided for each pair of them, and both ends decide alike
 * (image_travels): with transport "shared" elements travel in messages between two hosts and nowhere else;
 * with "inline" they travel everywhere.
 *
 * transport "shared": a pserver's segment holds `slots` images of IMAGE bytes each (image_bytes: (P + B) * 4
 * rounded up to a page), of which it writes its own range alone; the rest stays a hole without memory. A
 * trainer's segment, its outbox, is one image. In the host's memory nothing is copied: trainers read
 * parameters in the servers' segments, and servers read gradients in the trainers' outboxes. Entries have the
 * layout that the CPU backend's forward prefers (classifier_reorder), the same in all processes. Where the
 * device is a GPU they are canonical (image_reordered), and a trainer copies whole shards to and from it.
 * Chunks that travel between hosts hold the image's elements as they lie there. transport "inline": messages
 * carry chunks of an image, whose elements and entries are in canonical order; the server's image is
 * canonical too. GET_MODEL's fingerprint is that of params with the image's layouts: equal fingerprints prove
 * that both ends have the same model and layouts.
 *
 * ---- Versions ----
 * Version 0 is the model that the job begins with; every update makes the next. A trainer holds one version
 * at a time, the one it was given last, until its next PUSH_PULL is taken or GET_MODEL gives it another; a
 * slot is rewritten only when no trainer holds its version (worker/data_parallel/round.h).
 *
 * Every number of a message is checked against the model and the caller's state before use; a malformed call
 * (a range outside the model, a wrong byte count, an impossible step, a NaN) ends its sender's session
 * (rpc_reject). */
#ifndef WORKER_DATA_PARALLEL_SHARDS_H
#define WORKER_DATA_PARALLEL_SHARDS_H

#include "kernels/params/params_file.h"
#include "worker/job/job.h"
#include "worker/net/segment.h"

struct rpc;

/* ---- The args of messages ----
 * worker/net/PROTOCOL.md says what each method asks and answers, when, and what costs a caller its session.
 * GET_VERSION may be NEWEST. An `offset` is a slot's place in the server's segment, or NOWHERE: elements
 * travel. A loss is the bits of a double. METHOD_PUSH_PULL's answer has the args of METHOD_GET_MODEL's. */
enum get_model_arg { GET_VERSION, GET_FIRST, GET_COUNT, GET_FINGERPRINT };
enum model_arg { MODEL_VERSION, MODEL_OFFSET, MODEL_STEP, MODEL_FLAGS };
enum push_chunk_arg { CHUNK_STEP, CHUNK_FIRST };
enum push_pull_arg { PUSH_STEP, PUSH_BASE, PUSH_LOSS, PUSH_BYTES };
enum describe_data_arg { DATA_TRAIN, DATA_HELD_OUT };
enum evaluate_arg { EVALUATE_VERSION, EVALUATE_OFFSET, EVALUATE_SHARE, EVALUATE_SHARES };
enum evaluated_arg { EVALUATED_LOSS, EVALUATED_CORRECT, EVALUATED_SAMPLES };
enum save_shard_arg { SAVE_VERSION };

enum pull_flag {
    PULL_LATE = 1, /* the gradient came from an old version: dropped and counted */
    PULL_LAST = 2, /* the job's last update is made: push no more */
};

enum {
    PARAMETER_SERVER_CHUNK_ELEMENTS_MAX = 1 << 17, /* 512 KiB: half of the largest payload */
    PARAMETER_SERVER_PIECE_ELEMENTS = 16,
};
#define PARAMETER_SERVER_SAMPLES_MAX UINT32_MAX /* of a class's data, training or held out */
#define PARAMETER_SERVER_NEWEST UINT64_MAX
#define PARAMETER_SERVER_NOWHERE UINT64_MAX

/* The shard of server `server` of `servers`: the entries [entry_first, entry_end) of the params and their
 * elements [first, end). Cuts lie at entries, as near to equal bytes as these allow; every server has at
 * least one trained entry. Server 0 has the statistics as well: [P, P + B). */
struct shard {
    uint32_t entry_first, entry_end; /* trained entries in between; others belong to server 0 */
    size_t first, end;
    size_t statistics_first, statistics_end; /* equal: none */
};

/* Writes the shard of each server. `params` is laid out (params_lay_out). STATUS_INVALID when there are fewer
 * trained entries than servers. */
enum status shards_of(struct shard shards[], struct params *params, uint32_t servers, struct error *error);

/* Whether the image's entries have the layouts of the CPU backend's forward; otherwise all are canonical. */
bool image_reordered(const struct job *job);

/* Whether elements of images travel in messages between this worker and `worker`, with which it has a
 * session: with transport "inline", and with "shared" between hosts. */
bool image_travels(const struct job *job, const struct rpc *rpc, uint16_t worker);

/* Elements of the image, P + B, and the bytes from one slot to the next. */
size_t image_elements(struct params *params);
size_t image_bytes(struct params *params);

/* Maps zeroed memory for images that this process alone uses; segment_detach gives it back. Only pages that
 * are written cost memory. */
enum status image_map(struct segment *memory, size_t bytes, const char *what, struct error *error);

#endif
