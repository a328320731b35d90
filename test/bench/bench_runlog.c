/* The supervisor's CPU time for one record of an episode: the lines of the logs alone, and with
 * /log/tensorboard.
 *
 *     bench_runlog FOLDER [RECORDS]      FOLDER is empty, and is left with the logs in it
 *
 * The two alternate; figures are the median and, in brackets, the fastest and the slowest round. No time
 * fails. */
#include "daemon/log/runlog.h"

#include "test/bench/times.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 7, RECORDS = 20000 };

static struct error error;

static void must(enum status status)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "bench_runlog: %s: %s\n", status_name(status), error.text);
    exit(EXIT_FAILURE);
}

static double cpu_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static void make_record(struct control_message *message, bool is_ppo, uint64_t number)
{
    message->kind = CONTROL_EPISODE;
    message->body.episode = (struct control_episode){.episode = number,
                                                     .reward = 21.5,
                                                     .running_reward = 17.25,
                                                     .loss = -0.125,
                                                     .env_steps = 5000,
                                                     .timing = {.episode_s = 0.158},
                                                     .has_figures = is_ppo,
                                                     .figures = {.algorithm = JOB_ALGORITHM_PPO,
                                                                 .total_timesteps = 256 * number,
                                                                 .n_updates = number,
                                                                 .ep_rew_mean = 160.46,
                                                                 .ep_len_mean = 160.46,
                                                                 .loss = 0.1,
                                                                 .policy_loss = -0.01,
                                                                 .value_loss = 12.3,
                                                                 .entropy_loss = -0.6,
                                                                 .clip_fraction = 0.1,
                                                                 .approx_kl = 0.013,
                                                                 .explained_variance = 0.9,
                                                                 .learning_rate = 0.001,
                                                                 .clip_range = 0.2,
                                                                 .std = 1}};
}

/* CPU time of a record in a run of `records`. */
static double run(const char *folder, struct job *job, bool is_ppo, uint64_t records)
{
    static struct control_message message;
    const struct run_identity identity = {.id = {1}};
    struct runlog *log;
    const int fd = open(folder, O_RDONLY | O_DIRECTORY);
    must(runlog_open(&log, path_of_folder(fd, folder), job, &identity, &error));
    const double begin = cpu_ms();
    for (uint64_t number = 1; number <= records; number++) {
        make_record(&message, is_ppo, number);
        must(runlog_record(log, &message, NULL, &error));
    }
    const double spent = cpu_ms() - begin;
    runlog_close(log);
    close(fd);
    return spent / (double)records;
}

int main(int argc, char **argv)
{
    static const char text[] = "{\"kind\":\"reinforce\"}";
    static const char *const names[2][2] = {{"reinforce, the logs", "reinforce, with TensorBoard"},
                                            {"ppo, the logs", "ppo, with TensorBoard"}};
    static struct times times[2][2];
    static struct job job;
    char *problems = NULL;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_runlog FOLDER [RECORDS]\n");
        return 64;
    }
    const uint64_t records = argc > 2 ? strtoull(argv[2], NULL, 10) : RECORDS;
    must(job_parse(&job, text, strlen(text), "job.json", NULL, 0, &problems));
    job.log.every = UINT64_MAX; /* nothing on standard output */
    for (int round = 0; round < ROUNDS; round++)
        for (int kind = 0; kind < 2; kind++)
            for (int on = 0; on < 2; on++) {
                job.log.tensorboard = on;
                times[kind][on].ms[times[kind][on].count++] = run(argv[1], &job, kind, records);
            }
    for (int kind = 0; kind < 2; kind++)
        for (int on = 0; on < 2; on++) {
            struct times *of = &times[kind][on];
            const double median = times_median(of);
            printf("  %-36s %9.2f us [%.2f %.2f]\n", names[kind][on], 1e3 * median, 1e3 * of->ms[0],
                   1e3 * of->ms[ROUNDS - 1]);
        }
    return 0;
}
