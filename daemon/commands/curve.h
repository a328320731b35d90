/* One curve of a run: pairs of numbers from the lines of its episodes.jsonl, thinned while they are read.
 *
 * A curve has at most CURVE_POINTS_MAX points, whatever the log's length. At first a point is one line. When
 * the points are full, each two neighbours become one, their mean, and from then on a point stands for twice
 * as many lines: `stride` is a power of two, and only the newest point may stand for fewer lines.
 *
 * The command's process; one thread; blocks on the file. The commands plot and sweep include this. */
#ifndef DAEMON_COMMANDS_CURVE_H
#define DAEMON_COMMANDS_CURVE_H

#include "kernels/base/file.h"
#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CURVE_POINTS_MAX = 2048, CURVE_EVENT_BYTES = 16 };

struct curve_point {
    double x, y;    /* means over the lines */
    uint64_t lines; /* how many lines the point stands for */
};

/* Names of numbers in a line of the log: a member, or OBJECT.MEMBER. As `x` two more names are known:
 * "steps", the environment steps or samples up to this line, and "seconds", since the log's first line. Both
 * outlive the curve. */
struct curve_keys {
    const char *x, *y;
};

struct curve {
    struct curve_keys keys;
    struct curve_point *points; /* (count) in the log's order */
    uint32_t count, capacity;
    uint64_t stride;               /* lines of a point */
    struct curve_point newest;     /* the newest line with both numbers */
    bool ascends;                  /* no x is less than the one before */
    char event[CURVE_EVENT_BYTES]; /* the newest line's event; "": it is none, or there is no line */
    uint64_t lines;                /* complete lines, events included */
    uint64_t wrong, first_wrong;   /* lines that are no JSON object of a log; the first one's number */

    /* While reading. */
    uint64_t offset; /* of the first byte that is not read */
    double steps, begun_s;
    bool is_of_steps; /* a line that is no epoch's had both numbers */
};

/* An empty curve. curve_fini frees its points. */
void curve_init(struct curve *curve, struct curve_keys keys);
void curve_fini(struct curve *curve);

/* Takes the lines of the log `path` that were added since the last call. A last line without its end stays
 * for the next call. A line without both numbers, or with null for one, adds no point; an epoch's line adds
 * one only when updates have none, as with `accuracy`, or when x is "epoch". STATUS_NOT_FOUND,
 * STATUS_PERMISSION, STATUS_IO; STATUS_CORRUPT: a line is longer than a log's can be; STATUS_NO_MEMORY. */
enum status curve_read(struct curve *curve, struct path path, struct error *error);

/* Takes the new lines of RUN/episodes.jsonl. STATUS_INVALID: the path is too long; others as curve_read. */
enum status curve_read_run(struct curve *curve, const char *run, struct error *error);

/* Takes one line of the log, zero-terminated, without its '\n'. STATUS_NO_MEMORY. */
enum status curve_take(struct curve *curve, const char *line, struct error *error);

/* The curve's y at `x`, on a straight line between two points; of several points at `x`, the newest one's.
 * False: the curve does not reach there, or it does not ascend. */
bool curve_at(const struct curve *curve, double x, double *y);

#endif
