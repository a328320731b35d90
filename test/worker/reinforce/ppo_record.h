/* A case of a record that test/golden/ppo.py's write_case has written: named numbers, as inputs, or as
 * results, whose names begin with "=". Every function fails the running check where the file is not as
 * expected. */
#ifndef TEST_WORKER_REINFORCE_PPO_RECORD_H
#define TEST_WORKER_REINFORCE_PPO_RECORD_H

#include <stdint.h>

struct ppo_record;

/* Reads the case `name` of the file. */
struct ppo_record *ppo_record_open(const char *path, const char *name);
void ppo_record_close(struct ppo_record *record);

/* How many numbers an entry has. */
uint32_t ppo_record_count(const struct ppo_record *record, const char *entry);

/* Copies an input, which has `count` numbers. */
void ppo_record_take(const struct ppo_record *record, const char *entry, float *out, uint32_t count);

/* Compares a result, which has `count` numbers. Each is within five times what float32 was off in PyTorch, or
 * within 1e-6 of the largest number. */
void ppo_record_expect(const struct ppo_record *record, const char *entry, const float *got, uint32_t count);

#endif
