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

/* METHOD_GET_MODEL, trainer to any pserver. Request args: version, first element, count, fingerprint. With
 * count 0 the answer says where the image lies, and the caller holds that version from then on; NEWEST asks
 * for the newest. With count > 0 (at most CHUNK_ELEMENTS_MAX, within the server's range) the answer carries
 * these elements of a version that is still held; holds do not change. Reply args: version, offset of its
 * slot in the server's segment (NOWHERE: elements travel), the caller's next step, flags (enum pull_flag);
 * with count > 0 one tensor, float32[count]. STATUS_NOT_FOUND: that version is not held any more;
 * STATUS_INVALID: the caller computes another model (fingerprint). */
enum get_model_arg { GET_VERSION, GET_FIRST, GET_COUNT, GET_FINGERPRINT };
enum model_arg { MODEL_VERSION, MODEL_OFFSET, MODEL_STEP, MODEL_FLAGS };

/* METHOD_PUSH_CHUNK, trainer to a pserver to which elements travel: elements [first, first + n) of the
 * contribution of `step`, within the server's range; one tensor, float32[n], or with /transport/precision
 * "bfloat16" bfloat16[n] (worker/data_parallel/bfloat16.h) as the sender likes. Chunks may come in any order
 * and repeatedly. The contribution counts when PUSH_PULL comes; every element must have arrived by then.
 * `first` and n are multiples of PIECE_ELEMENTS, as the ends of every server's range are. Reply: nothing. */
enum push_chunk_arg { CHUNK_STEP, CHUNK_FIRST };

/* METHOD_PUSH_PULL, trainer to every pserver: the contribution of `step`, computed from version `base`.
 * Request args: step, base, loss (the bits of a double), bytes of the whole image, (P + B) * 4 (the
 * contribution is the sender's outbox from offset 0, or the chunks sent before). No tensors. No deadline: it
 * is answered when the round is complete, or at once when it came too late for its round; with
 * STATUS_SHUTDOWN when the job has made its last update. A replay of the same step replaces the earlier
 * contribution. Reply args as GET_MODEL's; no tensors. */
enum push_pull_arg { PUSH_STEP, PUSH_BASE, PUSH_LOSS, PUSH_BYTES };

/* METHOD_DESCRIBE_DATA, trainer to every pserver, its first request where /data/kind is "class", and only
 * there: how many samples the class has. Request args: training samples (0: the data has no epochs), held-out
 * samples (0: none), each at most SAMPLES_MAX. Reply: nothing. All trainers of a run say the same, those of a
 * resumed run what its checkpoint says, and each successor says it again. STATUS_INVALID: other numbers, or
 * too few for an update; the trainer then ends with this status and the text, and so does the job. */
enum describe_data_arg { DATA_TRAIN, DATA_HELD_OUT };

enum pull_flag {
    PULL_LATE = 1, /* the gradient came from an old version: dropped and counted */
    PULL_LAST = 2, /* the job's last update is made: push no more */
};

/* METHOD_EVALUATE, pserver 0 to every trainer: evaluate share `share` of `shares` of the held-out data on
 * `version`. `offset` is the place of its slot (NOWHERE: pull the version). Reply args: sum of the losses
 * (the bits of a double), correct, samples.
 *
 * Usually the request arrives before the reply that gives the trainer this version. In two cases it arrives
 * later, while the trainer's next PUSH_PULL waits: the trainer got the version by GET_MODEL while that
 * version was being saved, or the queue to the trainer was full. That PUSH_PULL is answered after the
 * evaluation. All servers write a version into the same slot. The other servers may write it later than
 * server 0; their replies to PUSH_PULL tell the trainer when it is there. */
enum evaluate_arg { EVALUATE_VERSION, EVALUATE_OFFSET, EVALUATE_SHARE, EVALUATE_SHARES };
enum evaluated_arg { EVALUATED_LOSS, EVALUATED_CORRECT, EVALUATED_SAMPLES };

/* METHOD_SAVE_SHARD, pserver 0 to the other pservers, at a round's boundary: once the receiver has `version`,
 * it writes its shard of that version's checkpoint (worker/checkpoint/checkpoint.h). Reply: nothing. */
enum save_shard_arg { SAVE_VERSION };

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
