/* Which call of a plug-in's environment a process is in. The note lies in memory that another process reads
 * after this one has crashed, or while a call does not come back: `coalesced try` reads its child's, the
 * supervisor each worker's. Workers in Python write the same struct (worker/net/PROTOCOL.md).
 *
 * One thread of a process calls environments. Beginning and ending a call are a few plain stores. */
#ifndef KERNELS_BASE_PLUGIN_CALL_H
#define KERNELS_BASE_PLUGIN_CALL_H

#include "kernels/base/monotime.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are in PROTOCOL.md. */
enum plugin_call_kind {
    PLUGIN_CALL_TEXT, /* of `try`: the member `call` says it */
    PLUGIN_CALL_LOAD_FILE,
    PLUGIN_CALL_OPEN,
    PLUGIN_CALL_RESET,
    PLUGIN_CALL_STEP,
    PLUGIN_CALL_SAVE,
    PLUGIN_CALL_LOAD,
    PLUGIN_CALL_RENDER,
    PLUGIN_CALL_CLOSE,
    PLUGIN_CALL_KINDS
};

struct plugin_call {
    _Atomic uint64_t begun_ns; /* when the call began (struct monotime); 0: none runs */
    uint32_t kind;             /* enum plugin_call_kind; of the latest call if none runs */
    uint32_t first, last;      /* the environments that it is for, by their numbers in the job */
    uint32_t zero;
    char clause[96], call[96]; /* of `try`: the check that the call belongs to; "step of 5 environments" */
};

/* From now on this process notes its calls there. Before, the notes are the process's own. */
void plugin_call_note_at(struct plugin_call *note);

/* A call begins, and ends. `begun` is not 0; the loop of steps does not read the clock for it. */
void plugin_call_begin(enum plugin_call_kind kind, uint32_t first, uint32_t last, struct monotime begun);
void plugin_call_end(void);

/* Writes "step of environment 3", "reset of environments 0 to 7" or "dlopen or environment_plugin()". Trusts
 * no member of a note that a worker has written. */
void plugin_call_name(char *out, size_t size, const struct plugin_call *note);

#endif
