/* Switches the kind of work, and adds up its time. All of it belongs to the profiled thread; no lock. */
#include "kernels/base/profile.h"

#include <assert.h>
#include <string.h>

_Thread_local bool profile_is_on;

static struct profile profile;
static enum profile_kind current;
static struct monotime since; /* when `current` began */

const char *profile_kind_name(enum profile_kind kind)
{
    static const char *const names[PROFILE_KINDS] = {
        [PROFILE_OTHER] = "other",
        [PROFILE_ENVIRONMENT] = "environment",
        [PROFILE_DATA] = "data",
        [PROFILE_TRANSPORT] = "transport",
        [PROFILE_WAITING] = "waiting",
        [PROFILE_INFERENCE] = "inference",
        [PROFILE_LEARNING] = "learning",
        [PROFILE_UPDATE] = "update",
        [PROFILE_CHECKPOINT] = "checkpoint",
    };
    return names[kind];
}

void profile_begin(struct monotime now)
{
    memset(&profile, 0, sizeof profile);
    profile.begin = since = now;
    current = PROFILE_OTHER;
    profile_is_on = true;
}

/* Ends the present stretch. */
static void profile_close_span(struct monotime now)
{
    const uint64_t ns = now.ns - since.ns;
    profile.ns[current] += ns;
    if (ns >= PROFILE_SPAN_NS_MIN)
        profile.spans[profile.span_count++ % PROFILE_SPANS_MAX] =
            (struct profile_span){.begin_ns = since.ns, .ns = ns, .kind = current};
    since = now;
}

enum profile_kind profile_enter_at(enum profile_kind kind, struct monotime now)
{
    const enum profile_kind before = current;
    assert(profile_is_on);
    if (kind != before)
        profile_close_span(now);
    current = kind;
    return before;
}

enum profile_kind profile_switch(enum profile_kind kind)
{
    return kind == current ? kind : profile_enter_at(kind, monotime_now());
}

const struct profile *profile_end(struct monotime now)
{
    if (!profile_is_on)
        return NULL;
    profile_close_span(now);
    profile_is_on = false;
    return &profile;
}
