/* The header that begins every message, and the limits that every message keeps.
 *
 * A message is two frames: this header (struct wire_header as it lies in memory) and one payload
 * (tensors one after the other without gaps, in the header's order; an error's UTF-8 text; HELLO's and
 * WELCOME's proof (worker/net/proof.h); or a piece of what the next message's tensors hold). A tensor may
 * also be lent: then only its place in the sender's segment (worker/net/segment.h) travels. PROTOCOL.md says
 * the same in prose, for a client in another language. Encoding and decoding are pure: no I/O, no allocation,
 * no blocking. */
#ifndef WORKER_NET_WIRE_H
#define WORKER_NET_WIRE_H

#include "kernels/base/status.h"
#include "worker/net/limits.h"

#include <stddef.h>
#include <stdint.h>

enum {
    WIRE_MAGIC = 0x4c414f43, /* "COAL" as bytes */
    WIRE_VERSION = 6,
    WIRE_HEADER_BYTES = 200,
    WIRE_PLACE_ALIGNMENT = 64,
};

enum wire_kind {
    WIRE_HELLO = 1,   /* dialing worker -> dialed worker, first: the sender's role and incarnation, proven */
    WIRE_WELCOME = 2, /* its answer: a proof, then the resolved job, as JSON text */
    WIRE_REQUEST = 3, /* either way */
    WIRE_REPLY = 4,   /* answers one request, with a value or a status and a text */
    WIRE_BYE = 5,     /* either way, last: the session is over; the payload is the reason */
    WIRE_PIECE = 6,   /* ahead of a request or reply whose tensors are too long for one payload */
};

/* A request's method. Numbers are never reused. */
enum wire_method {
    METHOD_NONE = 0,
    METHOD_ECHO = 1,        /* any -> any: answers its tensors unchanged */
    METHOD_RUN_EPISODE = 2, /* agent -> observer: play one rollout */
    METHOD_STEP = 3,        /* observer -> agent: rows in, actions out; reinforce/step_message.h */
    METHOD_GET_MODEL = 4,   /* trainer -> pserver; this and the next four: worker/data_parallel/shards.h */
    METHOD_PUSH_CHUNK = 5,  /* trainer -> pserver: a piece of a contribution, where memory is not shared */
    METHOD_PUSH_PULL = 6,   /* trainer -> pserver: a gradient in, the next model out */
    METHOD_EVALUATE = 7,    /* pserver 0 -> trainer */
    METHOD_SAVE_SHARD = 8,  /* pserver 0 -> pserver: its shard of a checkpoint */
    METHOD_REMOTE = 9,    /* any -> any, this and the next five: worker/reference/rref.h; create an object */
    METHOD_SHARE = 10,    /* giver -> taker: a reference */
    METHOD_CLAIM = 11,    /* taker -> owner: count the taker as a user, before the giver releases its use */
    METHOD_RELEASE = 12,  /* user -> owner: gives uses back */
    METHOD_OBJECT = 14,   /* 13 is not used; user -> owner: call a function of the object */
    METHOD_FORWARD = 15,  /* any -> any, this, 16 and 18 (17 is not used): dist.h; call within a context */
    METHOD_BACKWARD = 16, /* output gradients in, input gradients out */
    METHOD_END_CONTEXT = 18,
    METHOD_PARAMETERS = 19,     /* any -> owner: references to an object's parameters; dist_optimizer.h */
    METHOD_HOLDINGS = 20,       /* first trainer -> any: what do you hold; parallel.h */
    METHOD_DESCRIBE = 21,       /* observer -> agent, first: its environment's spaces, as JSON text */
    METHOD_RUN_EVALUATION = 22, /* agent -> observer: play some of an evaluation's episodes */
    METHOD_DESCRIBE_DATA = 23,  /* trainer -> pserver, first: the size of its class's data; shards.h */
    METHOD_COUNT                /* one past the highest number; a header with this or more is refused */
};

/* A worker's role: one bit of eight, so that a method's `callers` can be a mask of roles. */
enum wire_role {
    WIRE_ROLE_AGENT = 1,
    WIRE_ROLE_OBSERVER = 2,
    WIRE_ROLE_PSERVER = 4,
    WIRE_ROLE_TRAINER = 8,
};

enum wire_dtype { WIRE_F32 = 1, WIRE_U32 = 2, WIRE_U8 = 3, WIRE_U64 = 4, WIRE_BF16 = 5 };

struct wire_tensor {
    uint8_t dtype; /* enum wire_dtype */
    uint8_t rank;  /* 1 .. WIRE_RANK_MAX */
    uint16_t reserved;
    uint32_t dims[WIRE_RANK_MAX]; /* 1 or more; beyond rank: 0 */
};

/* The args of a piece. */
enum wire_piece_args {
    PIECE_OFFSET,
    PIECE_KIND /* WIRE_REQUEST or WIRE_REPLY: the kind of the message that it belongs to */
};

/* What a dialing worker shows the listener in ZMTP's PLAIN handshake (worker/net/proof.h). Both are text;
 * the rooms behind it are zero. */
struct wire_pass {
    char user[8];                            /* the listener's worker number */
    char password[2 * WIRE_PROOF_BYTES + 1]; /* hexadecimal */
};

/* Fields that a kind does not use are zero. Only requests and replies have a method, a context and tensors;
 * they and pieces have a request id, args and body_bytes. A reply that failed has no args, context or
 * tensors. Only requests have left_us, only replies a status, only HELLO and WELCOME a role. */
struct wire_header {
    uint32_t magic; /* wire_encode writes the right magic and version */
    uint16_t version;
    uint8_t kind;
    uint8_t status; /* a reply's enum status; never STATUS_AGAIN */
    uint16_t method;
    uint8_t role; /* HELLO and WELCOME: the sender's */
    uint8_t tensor_count;
    uint16_t source; /* worker numbers: the servers first, from 0, then their clients */
    uint16_t destination;
    uint32_t incarnation; /* the source's, from the supervisor */
    uint32_t generation;  /* the job's; others are dropped */
    uint64_t request;     /* chosen by the caller, ascending from 1; a reply repeats it */
    uint64_t left_us;     /* time left for a request, microseconds; UINT64_MAX: no deadline */
    uint64_t args[WIRE_ARGS];
    uint64_t context;       /* of distributed autograd; 0: none */
    uint32_t payload_bytes; /* the second frame's length */
    uint32_t body_bytes;    /* bytes that came ahead in pieces, when the payload is empty; else 0 */
    struct wire_tensor tensors[WIRE_TENSORS_MAX];
    uint64_t places[WIRE_TENSORS_MAX]; /* 0: it travels; else 1 + the offset in the source's segment */
};

/* Checks a header in memory, in wire_decode's order from `kind` on. */
enum status wire_check(const struct wire_header *header, struct error *error);

/* Checks the tensors alone. *sum: the bytes of the tensors that travel. */
enum status wire_check_tensors(const struct wire_header *header, uint64_t *sum, struct error *error);

/* Writes `header` into `bytes`. The header must be one that wire_check accepts, with reserved fields of zero
 * (asserted). */
void wire_encode(const struct wire_header *header, uint8_t bytes[WIRE_HEADER_BYTES]);

/* Reads a header out of a frame of `length` bytes, and checks in this order: length, magic, version,
 * reserved bytes (zero), kind, method, status, role, what the kind does not use (zero), tensors (dtype,
 * rank, dims, product without overflow, place), payload length against WIRE_PAYLOAD_BYTES_MAX, against what
 * the kind may carry (requests and successful replies: the sum of the sizes of the tensors that travel, or
 * nothing when that is body_bytes; pieces: within body_bytes; failed replies and BYE: WIRE_ERROR_TEXT_MAX;
 * HELLO: WIRE_HELLO_BYTES; WELCOME: WIRE_PROOF_BYTES or more), and against `payload_bytes`, the length of the
 * frame that came with it. STATUS_INVALID says which field broke which rule; *header is then not to be used.
 */
enum status wire_decode(struct wire_header *header, const uint8_t *bytes, size_t length, size_t payload_bytes,
                        struct error *error);

/* Bytes of the tensor, whose dims have been checked by wire_decode. */
size_t wire_tensor_bytes(const struct wire_tensor *tensor);

#endif
