/* The rules that bind several keys of a job. Each looks at values that have been judged good one by one, and
 * is silent where one of its own was not. Runs in whatever process reads a job, on the caller's thread. */
#include "worker/job/job_messages.h"
#include "worker/job/job_reading.h"

#include <stdarg.h>
#include <string.h>

static const struct job_found *found_at(const struct job_reading *reading, const char *pointer)
{
    return &reading->found[job_key_at(reading->kinds, pointer) - job_keys];
}

static bool wrong(const struct job_reading *reading, const char *pointer)
{
    return found_at(reading, pointer)->wrong;
}

/* Complains about `pointer` of two values that do not go together: behind the one that was said last, or
 * else at the job's first character. */
static void complain_of_two(struct job_reading *reading, const char *one, const char *other,
                            const char *pointer, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static void complain_of_two(struct job_reading *reading, const char *one, const char *other,
                            const char *pointer, const char *format, ...)
{
    char text[320];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const struct job_found *a = found_at(reading, one), *b = found_at(reading, other), *last = a;
    if (!a->present ||
        (b->present && (b->document > a->document || (b->document == a->document && b->node > a->node))))
        last = b;
    const struct json_document *of = &reading->documents[last->present ? last->document : 0];
    job_complain(reading, last->present ? last->document : 0,
                 of->scan.nodes[last->present ? last->node : 0].value, pointer, "%s", text);
}

/* ---- reinforce ---- */

static void check_environments(struct job_reading *reading)
{
    static const char count[] = "/observers/count", environments[] = "/observers/environments";
    uint64_t product = (uint64_t)reading->job->observers.count * reading->job->observers.environments;
    if (!wrong(reading, count) && !wrong(reading, environments) && product > JOB_ENVIRONMENTS_MAX)
        complain_of_two(reading, count, environments, "/observers",
                        "expected at most %d environments in all, got %u * %u = %llu", JOB_ENVIRONMENTS_MAX,
                        reading->job->observers.count, reading->job->observers.environments,
                        (unsigned long long)product);
}

/* A rollout is kept whole until it is learned from, so its size is a promise of memory. */
static void check_rollout(struct job_reading *reading)
{
    static const char environments[] = "/observers/environments", steps[] = "/rollout/steps";
    const struct job *job = reading->job;
    uint64_t all = (uint64_t)job->observers.count * job->observers.environments;
    uint64_t rows = all * job->rollout.steps;
    if (wrong(reading, "/observers/count") || wrong(reading, environments) || wrong(reading, steps) ||
        wrong(reading, "/rollout/mode") || job->rollout.mode != JOB_ROLLOUT_STEPS ||
        all > JOB_ENVIRONMENTS_MAX || rows <= JOB_ROLLOUT_ROWS_MAX)
        return;
    complain_of_two(reading, environments, steps, steps,
                    "expected at most %d rows in a rollout, got %llu environments * %u steps = %llu",
                    JOB_ROLLOUT_ROWS_MAX, (unsigned long long)all, job->rollout.steps,
                    (unsigned long long)rows);
}

/* Of two limits one must be set: `name` and `other` are their keys in /stop. */
static void check_limits(struct job_reading *reading, bool any, const char *name, const char *other)
{
    char one_pointer[64], other_pointer[64];
    snprintf(one_pointer, sizeof one_pointer, "/stop/%s", name);
    snprintf(other_pointer, sizeof other_pointer, "/stop/%s", other);
    if (!any && !wrong(reading, one_pointer) && !wrong(reading, other_pointer))
        complain_of_two(reading, one_pointer, other_pointer, "/stop",
                        "expected a limit, got null for both %s and %s: the job would never end", name,
                        other);
}

/* ---- parameter-server and model-parallel ---- */

static void check_trainers(struct job_reading *reading)
{
    static const char count[] = "/trainers/count", batch[] = "/trainers/batch";
    uint64_t samples = (uint64_t)reading->job->trainers.count * reading->job->trainers.batch;
    if (!wrong(reading, count) && !wrong(reading, batch) && samples > JOB_UPDATE_SAMPLES_MAX)
        complain_of_two(reading, count, batch, "/trainers",
                        "expected at most %d samples in an update, got %u * %u = %llu",
                        JOB_UPDATE_SAMPLES_MAX, reading->job->trainers.count, reading->job->trainers.batch,
                        (unsigned long long)samples);
}

/* ---- parameter-server ---- */

/* Several batches of images are in memory at a time. `pointer` is the key of their number of samples. */
static void check_batch(struct job_reading *reading, const char *pointer, uint32_t samples)
{
    uint64_t size = reading->job->data.size, channels = reading->job->data.channels;
    uint64_t values = samples * channels * size * size;
    if (wrong(reading, pointer) || wrong(reading, "/data/size") || wrong(reading, "/data/channels") ||
        values <= JOB_BATCH_VALUES_MAX)
        return;
    complain_of_two(reading, pointer, "/data/size", pointer,
                    "expected at most %d values in a batch, got %u images of %llu * %llu * %llu",
                    JOB_BATCH_VALUES_MAX, samples, (unsigned long long)channels, (unsigned long long)size,
                    (unsigned long long)size);
}

static void check_round(struct job_reading *reading)
{
    static const char count[] = "/server/count", round[] = "/server/round";
    const struct job *job = reading->job;
    char got[JOB_ROUND_BYTES];
    job_round_show(got, &job->server.round);
    if (wrong(reading, round) || job->server.round.rule == JOB_ROUND_ALL)
        return;
    if (!wrong(reading, count) && job->server.count > 1)
        complain_of_two(reading, count, round, round,
                        "expected \"all\" where there are %u servers, got \"%s\"", job->server.count, got);
    if (!wrong(reading, "/trainers/count") && job->server.round.rule == JOB_ROUND_FIRST &&
        job->server.round.number > job->trainers.count)
        complain_of_two(reading, "/trainers/count", round, round,
                        "expected at most the number of trainers, which is %u, got \"%s\"",
                        job->trainers.count, got);
}

static void check_data_path(struct job_reading *reading)
{
    static const char kind[] = "/data/kind", path[] = "/data/path";
    const struct job *job = reading->job;
    if (wrong(reading, kind) || wrong(reading, path) || job->data.kind == JOB_DATA_SYNTHETIC ||
        job->data.path[0] != '\0')
        return;
    complain_of_two(reading, kind, path, path,
                    "expected the folder with the files of the kind \"%s\", got %s",
                    job_key_at(reading->kinds, kind)->names[job->data.kind],
                    found_at(reading, path)->present ? "\"\"" : "nothing");
}

/* `pointer` is the key of `values`. */
static void check_colors(struct job_reading *reading, const char *pointer, const struct job_channels *values)
{
    if (!wrong(reading, pointer) && !wrong(reading, "/data/channels") &&
        values->count > reading->job->data.channels)
        complain_of_two(reading, "/data/channels", pointer, pointer,
                        "expected one number for the one channel, got an array of %u", values->count);
}

/* The tutorial's number of updates stands only where nothing else ends the job. */
static void settle_updates(struct job_reading *reading)
{
    struct job *job = reading->job;
    if (!job->stop.has_epochs || found_at(reading, "/stop/updates")->present)
        return;
    job->stop.has_updates = false;
    job->stop.updates = 0;
}

static void check_epochs(struct job_reading *reading)
{
    static const char epochs[] = "/stop/epochs", kind[] = "/data/kind";
    const struct job *job = reading->job;
    if (!wrong(reading, epochs) && !wrong(reading, kind) && !wrong(reading, "/stop/updates") &&
        job->stop.has_epochs && !job->stop.has_updates && job->data.kind == JOB_DATA_SYNTHETIC)
        complain_of_two(reading, epochs, kind, "/stop",
                        "expected a limit in updates, got epochs alone: synthetic data has no epochs");
}

/* ---- model-parallel ---- */

static bool is_text(const struct job_reading *reading)
{
    return !wrong(reading, "/data/kind") && reading->job->data.kind == JOB_DATA_TEXT;
}

static bool is_synthetic(const struct job_reading *reading)
{
    return !wrong(reading, "/data/kind") && reading->job->data.kind == JOB_DATA_SYNTHETIC;
}

/* The tutorial's vocabulary stands only where no text brings one. */
static void settle_tokens(struct job_reading *reading)
{
    struct job *job = reading->job;
    if (!is_text(reading) || found_at(reading, "/model/tokens")->present)
        return;
    job->rnn.has_tokens = false;
    job->rnn.tokens = 0;
}

static void check_tokens(struct job_reading *reading)
{
    static const char tokens[] = "/model/tokens", kind[] = "/data/kind";
    const struct job *job = reading->job;
    if (wrong(reading, tokens))
        return;
    if (is_text(reading) && job->rnn.has_tokens)
        complain_of_two(reading, tokens, kind, tokens,
                        "expected null where the data is a text, which brings its own vocabulary, got %u",
                        job->rnn.tokens);
    if (is_synthetic(reading) && !job->rnn.has_tokens)
        complain_of_two(reading, tokens, kind, tokens,
                        "expected the number of tokens where the data is synthetic, got null");
}

static void check_text(struct job_reading *reading)
{
    static const char kind[] = "/data/kind", path[] = "/data/path";
    if (is_text(reading) && !wrong(reading, path) && reading->job->data.path[0] == '\0')
        complain_of_two(reading, kind, path, path, "expected the file with the text, got %s",
                        found_at(reading, path)->present ? "\"\"" : "nothing");
}

static void check_classes(struct job_reading *reading)
{
    static const char classes[] = "/loss/classes", kind[] = "/data/kind";
    if (!wrong(reading, classes) && is_text(reading) && reading->job->sequence.classes == JOB_CLASSES_BATCH)
        complain_of_two(reading, classes, kind, classes,
                        "expected \"tokens\" where the data is a text, got \"batch\"");
}

static void check_place(struct job_reading *reading, const char *pointer, const struct job_place *place)
{
    static const char servers[] = "/server/count", trainers[] = "/trainers/count";
    const struct job *job = reading->job;
    if (wrong(reading, pointer))
        return;
    if (place->on_server && !wrong(reading, servers) && place->server >= job->server.count)
        complain_of_two(reading, servers, pointer, pointer, "\"server %u\", but /server/count is %u",
                        place->server, job->server.count);
    if (!place->on_server && !wrong(reading, trainers) && job->trainers.count > 1)
        complain_of_two(reading, trainers, pointer, pointer,
                        "expected \"server K\" where there are %u trainers, got \"trainer\"",
                        job->trainers.count);
}

/* A plateau is one of the held-out loss. */
static void check_plateau(struct job_reading *reading)
{
    static const char schedule[] = "/optimizer/schedule", every[] = "/evaluation/every",
                      held_out[] = "/data/held_out";
    const struct job *job = reading->job;
    if (wrong(reading, schedule) || job->optimizer.schedule != JOB_SCHEDULE_PLATEAU)
        return;
    if (is_synthetic(reading))
        complain_of_two(
            reading, schedule, "/data/kind", schedule,
            "expected \"constant\" where the data is synthetic, with none held out, got \"plateau\"");
    if (is_text(reading) && !wrong(reading, held_out) && !(job->sequence.held_out > 0))
        complain_of_two(reading, schedule, held_out, schedule,
                        "expected \"constant\" where /data/held_out is 0, got \"plateau\"");
    if (!wrong(reading, every) && !job->evaluation.has_every)
        complain_of_two(reading, schedule, every, schedule,
                        "expected \"constant\" where /evaluation/every is null, got \"plateau\"");
}

/* What is beyond the wire's limit is beyond the kernels', too: the widest tensors, the logits, travel, and
 * the LSTM's gates are four times as wide as what does. A text's vocabulary is not known here: whoever reads
 * the text sees to what hangs on it (parallel_data_open). */
static void check_messages(struct job_reading *reading)
{
    static const char *const keys[] = {"/data/steps", "/model/tokens", "/model/embedding", "/model/hidden",
                                       "/model/layers"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (wrong(reading, keys[i]))
            return;
    struct job_message messages[JOB_MESSAGES_MAX];
    const uint32_t count = job_messages(reading->job, reading->job->rnn.tokens, messages);
    for (uint32_t i = 0; i < count; i++) {
        const struct job_message *message = &messages[i];
        if (message->bytes > WIRE_BODY_BYTES_MAX && !wrong(reading, message->one) &&
            !wrong(reading, message->other))
            complain_of_two(reading, message->one, message->other, message->other,
                            "expected at most %d bytes in a message, got %llu for %s: %s",
                            WIRE_BODY_BYTES_MAX, (unsigned long long)message->bytes, message->what,
                            message->how);
    }
}

/* The tutorial's number of epochs stands only where nothing else ends the job. */
static void settle_epochs(struct job_reading *reading)
{
    struct job *job = reading->job;
    if (!job->stop.has_updates || found_at(reading, "/stop/epochs")->present)
        return;
    job->stop.has_epochs = false;
    job->stop.epochs = 0;
}

/* ---- all kinds ---- */

static void check_reinforce(struct job_reading *reading)
{
    const struct job *job = reading->job;
    check_environments(reading);
    check_rollout(reading);
    check_limits(reading, job->stop.has_episodes || job->stop.has_running_reward, "episodes",
                 "running_reward");
}

static void check_parameter_server(struct job_reading *reading)
{
    const struct job *job = reading->job;
    check_trainers(reading);
    check_batch(reading, "/trainers/batch", job->trainers.batch);
    check_batch(reading, "/evaluation/batch", job->evaluation.batch);
    check_round(reading);
    check_data_path(reading);
    check_colors(reading, "/data/mean", &job->data.mean);
    check_colors(reading, "/data/std", &job->data.std);
    settle_updates(reading);
    check_limits(reading, job->stop.has_updates || job->stop.has_epochs, "updates", "epochs");
    check_epochs(reading);
}

static void check_model_parallel(struct job_reading *reading)
{
    static const char *const places[JOB_LAYERS] = {[JOB_LAYER_EMBEDDING] = "/placement/embedding",
                                                   [JOB_LAYER_LSTM] = "/placement/lstm",
                                                   [JOB_LAYER_DECODER] = "/placement/decoder"};
    const struct job *job = reading->job;
    settle_tokens(reading);
    check_tokens(reading);
    check_text(reading);
    check_classes(reading);
    check_trainers(reading);
    for (int part = 0; part < JOB_LAYERS; part++)
        check_place(reading, places[part], &job->placement[part]);
    check_plateau(reading);
    check_messages(reading);
    settle_epochs(reading);
    check_limits(reading, job->stop.has_updates || job->stop.has_epochs, "updates", "epochs");
}

void job_check_rules(struct job_reading *reading)
{
    if (reading->kinds == JOB_KINDS_OF(JOB_REINFORCE))
        check_reinforce(reading);
    else if (reading->kinds == JOB_KINDS_OF(JOB_PARAMETER_SERVER))
        check_parameter_server(reading);
    else if (reading->kinds == JOB_KINDS_OF(JOB_MODEL_PARALLEL))
        check_model_parallel(reading);
}
