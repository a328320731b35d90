/* A run's status (the JSON of daemon/watch/run_status.h) for people. The command's process; pure but for
 * `out`. */
#ifndef DAEMON_COMMANDS_STATUS_TABLE_H
#define DAEMON_COMMANDS_STATUS_TABLE_H

#include <cjson/cJSON.h>
#include <stdio.h>

/* Three lines about the job, then a line for each worker; `width`: columns of the terminal, beyond which
 * lines are cut; 0: they are not. Columns that say nothing in any line are left out. */
void status_table_write(FILE *out, const cJSON *status, int width);

/* The run's state and progress in one line, without its end; and one of its words. */
void status_table_line(FILE *out, const cJSON *status);
void status_table_word(FILE *out, const cJSON *status, const char *member);

#endif
