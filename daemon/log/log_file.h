/* One of a run's two logs on the disk: appends whole lines, confirms a place, and cuts the lines after a
 * place.
 *
 * A run's lines are numbered through all files of the log. After a rotation by rename the new file begins
 * with a line that says how many lines came before it. A checkpoint names a place
 * (struct log_place). A log confirms the place in one of these cases:
 *
 *     the file       its first bytes have the place's digest
 *     the beginning  the file begins right after the place, as the file's first line says
 *     a moved file   another file in the run's directory has the digest; the process died within a rotation
 *     no file        the log was moved elsewhere
 *
 * Beside NAME there may be NAME.cut, the lines that were cut, and NAME.damaged (NAME.damaged-2, …), files in
 * which no checkpoint's place was found.
 *
 * Supervisor process; its only thread; blocks on the disk. */
#ifndef DAEMON_LOG_LOG_FILE_H
#define DAEMON_LOG_LOG_FILE_H

#include "kernels/base/file.h"
#include "worker/run_place.h"

#include <stdbool.h>

struct log_file;

/* Opens RUN/NAME, which is made where it is missing. `run` outlives the log. The place is at the file's
 * beginning: a file with lines needs log_file_cut before the first line is appended. */
enum status log_file_open(struct log_file **out, struct path run, enum run_log log, struct error *error);
void log_file_close(struct log_file *file); /* NULL is allowed */

/* Appends one line by one write(2), whole or not at all. STATUS_IO and others name the file; also if the
 * previous file of a rotation could not be synced. */
enum status log_file_append(struct log_file *file, const char *line, size_t length, struct error *error);

/* The place behind the newest line. */
struct log_place log_file_place(const struct log_file *file);

/* Whether this line, ended by a line feed, is the file's last one. */
bool log_file_ends_with(const struct log_file *file, const char *line, size_t length);

/* The key in front of a run's id in the first line of episodes.jsonl, whose end is the line's `timing`: two
 * runs of one seed have other ids. */
#define LOG_RUN_KEY ",\"run\":\""

/* The id of the run that the file's first line names. False: it names none. */
bool log_file_run_id(const struct log_file *file, uint8_t id[RUN_ID_BYTES]);

/* STATUS_OK: the log confirms the place in the run `id`. STATUS_CORRUPT: it does not; `why` names the file
 * and what was found. STATUS_IO, STATUS_NO_MEMORY. */
enum status log_file_confirm(const struct log_file *file, const struct log_place *place,
                             const uint8_t id[RUN_ID_BYTES], struct error *why);

/* Moves the lines behind the place to the end of NAME.cut: all from the first one that is no event. NAME.cut
 * is on the disk before the file is cut. Shows each line that is moved to `cut`. A log that does not confirm
 * the place is renamed to NAME.damaged, and a new file begins behind the place; a warning says so. */
struct log_cut {
    void (*line)(void *context, const char *text);
    void *context;
};
enum status log_file_cut(struct log_file *file, const struct log_place *place, const uint8_t id[RUN_ID_BYTES],
                         const struct log_cut *cut, struct error *error);

/* Shows the lines of NAME.cut, which were cut before. */
enum status log_file_show_cut(const struct log_file *file, const struct log_cut *cut, struct error *error);

/* Whether the name is no longer the open file's: a rotation has renamed it. */
bool log_file_is_moved(const struct log_file *file);

/* Goes on in a new file of the name, if the file was moved. The new file begins with a line that names the
 * run and the lines before it; the lines behind `place` move there. The old file is synced. After an error
 * the old file is kept. */
enum status log_file_continue(struct log_file *file, const struct log_place *place,
                              const uint8_t id[RUN_ID_BYTES], struct error *error);

#endif
