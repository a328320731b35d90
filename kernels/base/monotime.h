/* Time: absolute, monotonic, in a type of its own, so that no duration or wall clock can be passed for a
 * point in time. CLOCK_MONOTONIC; comparable between processes of one boot, never across hosts. Nothing here
 * blocks or fails. */
#ifndef KERNELS_BASE_MONOTIME_H
#define KERNELS_BASE_MONOTIME_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct monotime {
    uint64_t ns; /* nanoseconds since boot */
};

/* Later than every real time: "no deadline". */
#define MONOTIME_NEVER ((struct monotime){UINT64_MAX})

static inline struct monotime monotime_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (struct monotime){(uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec};
}

/* The time of day, for people and logs: seconds since 1970. It may jump. */
static inline double unix_time_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline bool monotime_before(struct monotime a, struct monotime b)
{
    return a.ns < b.ns;
}

static inline struct monotime monotime_earliest(struct monotime a, struct monotime b)
{
    return a.ns < b.ns ? a : b;
}

static inline bool monotime_is_never(struct monotime t)
{
    return t.ns == UINT64_MAX;
}

/* `t` + `us` microseconds; saturates at MONOTIME_NEVER. */
static inline struct monotime monotime_add_us(struct monotime t, uint64_t us)
{
    if (us >= (UINT64_MAX - t.ns) / 1000)
        return MONOTIME_NEVER;
    return (struct monotime){t.ns + us * 1000};
}

/* Microseconds from `from` to `to`, rounded down; 0 when `to` is not later. */
static inline uint64_t monotime_us_between(struct monotime from, struct monotime to)
{
    return to.ns > from.ns ? (to.ns - from.ns) / 1000 : 0;
}

/* A timeout for poll(2): milliseconds from `now` until `until`, rounded up (a wait never ends early and
 * then spins), -1 for MONOTIME_NEVER, at most one hour. */
static inline int monotime_poll_ms(struct monotime now, struct monotime until)
{
    if (monotime_is_never(until))
        return -1;
    if (until.ns <= now.ns)
        return 0;
    uint64_t ms = (until.ns - now.ns + 999999) / 1000000;
    return ms > 3600000 ? 3600000 : (int)ms;
}

#endif
