/* Every limit of the connections between workers, in one place. The first group is part of the protocol
 * (PROTOCOL.md); the others are this program's own. */
#ifndef WORKER_NET_LIMITS_H
#define WORKER_NET_LIMITS_H

/* Limits of one message. */
enum {
    WIRE_ARGS = 4,
    WIRE_TENSORS_MAX = 4,
    WIRE_RANK_MAX = 4,
    WIRE_PAYLOAD_BYTES_MAX = 1 << 20,
    WIRE_BODY_BYTES_MAX = 512 << 20, /* of all tensors of a message that travel, and of each lent tensor */
    WIRE_ERROR_TEXT_MAX = 400,       /* bytes */
    WIRE_QUEUE_MAX = 60,             /* messages in flight to one peer: less than 64 MB */
    WIRE_SECRET_BYTES = 32,          /* of one job, from its supervisor */
    WIRE_NONCE_BYTES = 32,           /* of one HELLO */
    WIRE_PROOF_BYTES = 32,           /* that the sender of HELLO or WELCOME knows the secret */
    WIRE_HELLO_BYTES = WIRE_NONCE_BYTES + WIRE_PROOF_BYTES,
    REPLAY_WINDOW = 4096, /* request ids up to the highest seen: a repeated one is recognised among these */
};

/* Limits of one worker's memory and work. */
enum {
    RPC_LEND_BYTES = 64 << 10,                /* smaller tensors are never lent */
    RPC_BODY_BYTES_MAX = WIRE_BODY_BYTES_MAX, /* of one peer's bodies in this worker, and of this worker's
                                                 bodies that wait for one peer */
    RPC_DIALED_MAX = 272,                     /* workers that one worker dials */
    RPC_BEATS_MAX = 4,                        /* functions that rpc_on_turn adds */
    RPC_LEFT_MAX = 5,                         /* functions that rpc_on_left adds, and rpc_config's */
    STRANGERS_MAX = 64,      /* connections that this worker ended last with BYE, and ignores */
    GATE_WAITING_MAX = 2048, /* connections that have not shown the pass */
    FAREWELLS_MAX = 64,      /* BYEs that wait for room */
    REPLIES_HELD_MAX = 1024, /* replies that may wait for one peer when it sends a request */
    HELD_BYTES_MAX =
        WIRE_QUEUE_MAX * WIRE_PAYLOAD_BYTES_MAX, /* of one session's held replies: a second queue */
    DRAIN_MAX = 256,                             /* messages of one socket handled in one turn */
    GLANCE_TURNS = 32,                           /* busy turns between two looks at the watches */
};

#endif
