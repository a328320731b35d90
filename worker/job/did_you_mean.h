/* "did you mean …?": the key or the value that a misspelt one may stand for. Pure; any thread. */
#ifndef WORKER_JOB_DID_YOU_MEAN_H
#define WORKER_JOB_DID_YOU_MEAN_H

#include "worker/job/job_table.h"

enum { DID_YOU_MEAN_BYTES = 160 };

/* Writes "; did you mean \"count\"?" with the key beside `pointer`, which is no key, that is most like it, or
 * else with keys elsewhere of the same name: "; did you mean /observers/count?". "" if there is none. */
void did_you_mean_key(char question[DID_YOU_MEAN_BYTES], unsigned kinds, const char *pointer);

/* The same of the string `got`, which is none of the key's names. */
void did_you_mean_value(char question[DID_YOU_MEAN_BYTES], const struct job_key *key, const char *got);

#endif
