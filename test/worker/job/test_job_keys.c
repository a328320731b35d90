/* The table of a job's keys: its soundness, its bounds, the round trip of any job, and the
 * schema that is made of it. Runs in the repository's root. */
#include "test/worker/job/job_fixture.h"
#include "test/workplace.h"
#include "worker/data/vocabulary.h"
#include "worker/model/rnn.h"

#include <float.h>
#include <math.h>

/* ---- the table ---- */

/* A job of the first of the key's kinds, in which this key at its bound breaks no rule that binds several. */
static const char *base_of(const struct job_key *key)
{
    if (strcmp(key->pointer, "/observers/groups") == 0)
        return "{\"kind\": \"reinforce\", \"observers\": {\"environments\": 64}}";
    if ((key->kinds & JOB_KINDS_OF(JOB_REINFORCE)) != 0)
        return minimal_reinforce;
    static const char *const minimal[] = {[JOB_VARIANT_PPO] = minimal_ppo,
                                          [JOB_VARIANT_A2C] = minimal_a2c,
                                          [JOB_VARIANT_DQN] = minimal_dqn,
                                          [JOB_VARIANT_SAC] = minimal_sac,
                                          [JOB_VARIANT_TD3] = minimal_td3};
    for (int variant = JOB_VARIANT_PPO; variant < JOB_VARIANTS; variant++)
        if ((key->kinds & JOB_KINDS_OF(variant)) != 0)
            return minimal[variant];
    if ((key->kinds & JOB_KINDS_OF(JOB_PARAMETER_SERVER)) == 0 &&
        strcmp(key->pointer, "/model/tokens") != 0 && strcmp(key->pointer, "/loss/classes") != 0)
        return "{\"kind\": \"model-parallel\", \"trainers\": {\"batch\": 1}, \"evaluation\": {\"batch\": 1}, "
               "\"placement\": {\"lstm\": \"server 0\"}, \"data\": {\"kind\": \"text\", \"path\": \".\", "
               "\"steps\": 1}, \"stop\": {\"updates\": 1}}";
    if ((key->kinds & JOB_KINDS_OF(JOB_PARAMETER_SERVER)) == 0)
        return minimal_parallel;
    if (strcmp(key->pointer, "/data/kind") == 0)
        return "{\"kind\": \"parameter-server\", \"transport\": \"inline\", \"trainers\": {\"class\": "
               "\"a:B\"}, "
               "\"data\": {\"path\": \".\"}}";
    return "{\"kind\": \"parameter-server\", \"trainers\": {\"batch\": 2}, \"evaluation\": {\"batch\": 1}, "
           "\"data\": {\"path\": \".\"}, \"stop\": {\"updates\": 1}}";
}

static bool accepts(const struct job_key *key, double value)
{
    char override[256], number[40];
    snprintf(number, sizeof number, key->type == JOB_NUMBER ? "%.17g" : "%.0f", value);
    snprintf(override, sizeof override, key->elements > 0 ? "%s=[%s]" : "%s=%s", key->pointer, number);
    const char *overrides[] = {override};
    char *got = judge_job(base_of(key), overrides, 1);
    bool accepted = got[0] == '{';
    free(got);
    return accepted;
}

/* The next number that is no denormal one: the program takes those for 0. */
static double next_number(double from, double to)
{
    const double next = nextafter(from, to);
    return fabs(next) < DBL_MIN ? copysign(DBL_MIN, to) : next;
}

START_TEST(every_bound_of_every_key_holds)
{
    unsigned keys = 0;
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        if ((key->type != JOB_INTEGER && key->type != JOB_NUMBER && key->type != JOB_WIDTHS) ||
            key->max == DBL_MAX)
            continue;
        keys++;
        double below = key->type == JOB_NUMBER ? next_number(key->min, -INFINITY) : key->min - 1;
        double above = key->type == JOB_NUMBER ? next_number(key->max, INFINITY) : key->max + 1;
        ck_assert_msg(accepts(key, key->min) == !key->min_open, "%s", key->pointer);
        ck_assert_msg(accepts(key, key->max) == !key->max_open, "%s", key->pointer);
        ck_assert_msg(!accepts(key, below) && !accepts(key, above), "%s", key->pointer);
        if (key->min_open)
            ck_assert(accepts(key, next_number(key->min, INFINITY)));
        if (key->max_open)
            ck_assert(accepts(key, next_number(key->max, -INFINITY)));
    }
    ck_assert_uint_eq(keys, 129);
}
END_TEST

static void check_names(const struct job_key *key)
{
    for (size_t n = 0; key->names != NULL && key->names[n] != NULL; n++) {
        char override[128], quoted[128];
        if (key->names[n][0] == '\0')
            continue;
        snprintf(override, sizeof override, "%s=%s", key->pointer, key->names[n]);
        snprintf(quoted, sizeof quoted, "\"%s\": \"%s\"", job_key_name(key), key->names[n]);
        const char *overrides[] = {override};
        char *got = judge_job(base_of(key), overrides, 1);
        ck_assert_msg(strstr(got, quoted) != NULL, "%s: %s", override, got);
        free(got);
    }
}

START_TEST(every_name_of_every_key_is_taken)
{
    for (size_t i = 0; i < job_key_count; i++)
        if (job_keys[i].type != JOB_NUMBERED && strcmp(job_keys[i].pointer, "/kind") != 0)
            check_names(&job_keys[i]);
}
END_TEST

/* What the lookups say of one line in one of its kinds. */
static void check_line(const struct job_key *key, int kind)
{
    char group[64];
    size_t length = (size_t)(job_key_name(key) - key->pointer) - 1;
    snprintf(group, sizeof group, "%.*s", (int)length, key->pointer);
    const struct job_key *parent = job_key_at(JOB_KINDS_OF(kind), group);
    ck_assert_msg(length == 0 || (parent != NULL && parent->type == JOB_OBJECT), "%s", key->pointer);
    ck_assert_ptr_eq(job_key_at(JOB_KINDS_OF(kind), key->pointer), key);
    ck_assert(job_key_is_member(key, group) && !job_key_is_member(key, key->pointer));
}

START_TEST(table_is_sound)
{
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        ck_assert(key->kinds != 0 && (key->kinds & ~JOB_KINDS_ALL) == 0);
        for (int kind = 0; kind < JOB_VARIANTS; kind++)
            if ((key->kinds & JOB_KINDS_OF(kind)) != 0)
                check_line(key, kind);
        ck_assert(key->text != NULL && !job_key_ignored(job_key_name(key)));
        ck_assert((key->type == JOB_OBJECT) == (key->bytes == 0));
    }
    ck_assert_str_eq(job_kind_name(JOB_REINFORCE), "reinforce");
    ck_assert_str_eq(job_kind_name(JOB_PARAMETER_SERVER), "parameter-server");
    ck_assert_str_eq(job_kind_name(JOB_MODEL_PARALLEL), "model-parallel");
    ck_assert_int_eq(JOB_TOKENS_MAX, VOCABULARY_WORDS_MAX);
    ck_assert_int_eq(JOB_LSTM_LAYERS_MAX, RNN_LAYERS_MAX);
}
END_TEST

/* ---- the round trip ---- */

/* Most of a round goes into regular expressions, which a sanitizer makes six times slower. Its build needs
 * each branch, not each value. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { ROUNDS = 300 };
#else
enum { ROUNDS = 3000 };
#endif

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state * 2685821657736338717u;
}

/* Any number that the key allows; every now and then a bound, or the smallest there is. */
static double draw_number(uint64_t *state, const struct job_key *key)
{
    for (;;) {
        uint64_t bits = draw(state);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (draw(state) % 4 != 0)
            value = key->min / 2 + (key->max / 2 - key->min / 2) * ((double)(bits >> 11) * 0x1p-53) * 2 +
                    key->min / 2;
        if (draw(state) % 16 == 0)
            value = draw(state) % 2 == 0 ? key->max : key->min;
        if (value >= key->min && value <= key->max && !(key->min_open && value == key->min) &&
            !(key->max_open && value == key->max))
            return value;
    }
}

/* Characters that need an escape, and some of several bytes. */
static void draw_path(uint64_t *state, char *path, size_t min, size_t max)
{
    static const char *const pieces[] = {"a",           "/", " ", "\"", "\\", "\xC3\xA9", "\xF0\x9F\x98\x80",
                                         "\xE6\x97\xA5"};
    size_t wanted = draw(state) % 16 == 0 ? max : min + draw(state) % 24, length = 0;
    memset(path, 0, JOB_PATH_BYTES);
    for (const char *piece = "x"; length + strlen(piece) <= wanted; piece = pieces[draw(state) % 8])
        length += (size_t)snprintf(path + length, JOB_PATH_BYTES - length, "%s", piece);
}

static void draw_name(uint64_t *state, char *name)
{
    const size_t length = 1 + draw(state) % (JOB_NAME_BYTES - 1);
    memset(name, 0, JOB_NAME_BYTES);
    for (size_t i = 0; i < length; i++)
        name[i] = "abcXYZ019_.-:"[draw(state) % (i == 0 ? 10 : 13)];
}

/* "module:Class": a name hardly ever has this form by chance. */
static void draw_class(uint64_t *state, char *name)
{
    snprintf(name, JOB_NAME_BYTES, "m%x.n:C%x", (unsigned)draw(state), (unsigned)draw(state));
}

/* Objects as they are printed: with members that need an escape, and deep. */
static void draw_options(uint64_t *state, char *options)
{
    static const char *const pieces[] = {"{}", "{\"a\":[1,{\"b\":null}],\"\\u0001\":\"\\\"\"}",
                                         "{\"x\":-0.5}"};
    snprintf(options, JOB_OPTIONS_BYTES, "%s", pieces[draw(state) % 3]);
}

static void draw_channels(uint64_t *state, struct job_channels *channels, const struct job_key *key)
{
    channels->count = draw(state) % 2 == 0 ? 1 : JOB_CHANNELS_MAX;
    for (uint32_t i = 0; i < channels->count; i++)
        channels->value[i] = draw_number(state, key);
}

static void draw_widths(uint64_t *state, struct job_widths *widths, const struct job_key *key)
{
    for (int part = 0; part <= (key->second != NULL); part++) {
        widths[part] = (struct job_widths){.count = (uint32_t)(draw(state) % (JOB_WIDTHS_MAX + 1))};
        for (uint32_t i = 0; i < widths[part].count; i++)
            widths[part].value[i] = (uint32_t)draw_number(state, key);
    }
}

/* "auto" begins with a number that is above 0. */
static void draw_auto(uint64_t *state, struct job_auto *at, const struct job_key *key)
{
    *at = (struct job_auto){.automatic = draw(state) % 2 == 0, .number = draw_number(state, key)};
    if (at->automatic)
        at->number = strchr(key->pattern, '_') == NULL ? 1 : 0.5 + (double)(draw(state) % 1000);
}

static void draw_frequency(uint64_t *state, struct job_frequency *at, const struct job_key *key)
{
    *at =
        (struct job_frequency){.count = (uint32_t)draw_number(state, key), .episodes = draw(state) % 2 == 0};
}

static void draw_integer(uint64_t *state, void *at, const struct job_key *key)
{
    double value = key->bounds_only ? (draw(state) % 2 == 0 ? key->min : key->max) : draw_number(state, key);
    if (key->min < 0)
        *(int32_t *)at = (int32_t)value;
    else if (key->bytes == sizeof(uint32_t))
        *(uint32_t *)at = (uint32_t)value;
    else
        *(uint64_t *)at = (uint64_t)value;
}

static void draw_value(uint64_t *state, struct job *job, const struct job_key *key)
{
    void *at = (char *)job + key->offset;
    size_t names = 0;
    while (key->names != NULL && key->names[names] != NULL)
        names++;
    if (key->nullable)
        *(bool *)((char *)job + key->offset_present) = true;
    if (key->type == JOB_WIDTHS)
        draw_widths(state, at, key);
    else if (key->elements > 0)
        draw_channels(state, at, key);
    else if (key->type == JOB_AUTO)
        draw_auto(state, at, key);
    else if (key->type == JOB_FREQUENCY)
        draw_frequency(state, at, key);
    else if (key->type == JOB_INTEGER)
        draw_integer(state, at, key);
    else if (key->type == JOB_NUMBER)
        *(double *)at = draw_number(state, key);
    else if (key->type == JOB_BOOLEAN)
        *(bool *)at = draw(state) % 2 == 0;
    else if (names > 0 && key->type == JOB_ENUM && strcmp(key->pointer, "/kind") != 0)
        do
            *(int *)at = (int)(draw(state) % names);
        while (key->names[*(int *)at][0] == '\0');
    else if (key->type == JOB_NAME)
        do
            if (strcmp(job_key_name(key), "class") == 0 || strcmp(job_key_name(key), "pettingzoo") == 0)
                draw_class(state, at);
            else
                draw_name(state, at);
        while (!job_pattern_matches(key, at));
    else if (key->type == JOB_OPTIONS)
        draw_options(state, at);
    else if (key->type == JOB_PATH)
        draw_path(state, at, (size_t)key->min, (size_t)key->max);
}

/* A nullable key becomes null: what it may not be then is zero. */
static void make_null(struct job *job, const char *pointer)
{
    const struct job_key *key = job_key_at(JOB_KINDS_OF(job_variant(job)), pointer);
    *(bool *)((char *)job + key->offset_present) = false;
    memset((char *)job + key->offset, 0, key->bytes);
}

static void expect_round_trip(const struct job *job)
{
    size_t bytes;
    char *text = job_format(job, &bytes);
    ck_assert_uint_eq(strlen(text), bytes);
    struct job again;
    char *problems;
    memset(&again, 0xA5, sizeof again);
    enum status status = job_parse(&again, text, bytes, "x", NULL, 0, &problems);
    ck_assert_msg(status == STATUS_OK, "%s%s", text, problems);
    ck_assert_msg(same_job(job, &again), "%s", text);
    free(text);
}

static void draw_job(uint64_t *state, struct job *job, int kind)
{
    ck_assert_int_eq(job_defaults(job, JOB_KINDS_OF(kind)), STATUS_OK);
    job->kind = kind < JOB_VARIANT_PPO ? kind : JOB_REINFORCE;
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & JOB_KINDS_OF(kind)) != 0)
            draw_value(state, job, &job_keys[i]);
    job->algorithm.name = JOB_ALGORITHM_REINFORCE;
    if (kind < JOB_VARIANT_PPO)
        return;
    job->algorithm.name = JOB_ALGORITHM_PPO + kind - JOB_VARIANT_PPO;
    /* and what it implies */
    job->rollout.begin = JOB_BEGIN_CONTINUE;
    job->optimizer.beta1 = 0.9;
    job->optimizer.beta2 = 0.999;
    job->running_reward.of = JOB_OF_MEAN;
    job->running_reward.weight = 1;
    /* and what its memory asks for */
    job->policy.enable_critic_lstm &= !job->policy.shared_lstm;
    if (job->policy.has_recurrent && kind == JOB_VARIANT_PPO)
        make_null(job, "/algorithm/sequences");
    if (kind != JOB_VARIANT_A2C)
        return;
    job->algorithm.n_epochs = 1;
    job->algorithm.batch_size = JOB_ROLLOUT_ROWS_MAX;
    job->algorithm.clip_range = (double)INFINITY;
}

/* Makes of any numbers of environments ones that the limits allow. */
static void make_few(struct job *job)
{
    job->observers.count += job->observers.count == 0;
    job->observers.environments =
        1 + job->observers.environments % (JOB_ENVIRONMENTS_MAX / job->observers.count);
    job->rollout.steps = 1 + job->rollout.steps % (JOB_ROLLOUT_ROWS_MAX / JOB_ENVIRONMENTS_MAX);
    job->observers.groups = 1 + job->observers.groups % job->observers.environments;
    job->observers.groups = job->observers.groups > 64 ? 64 : job->observers.groups;
}

/* Leaves the job one source of environments. */
static void make_one_source(struct job *job, int which)
{
    static const char *const sources[] = {"/environment/plugin", "/environment/gymnasium",
                                          "/environment/class", "/environment/pettingzoo"};
    for (int source = 0; source < 4; source++)
        if (source != which)
            make_null(job, sources[source]);
    if (job_has_python_environments(job))
        make_null(job, "/environment/name");
    job->environment.renew = job->environment.renew && job_has_python_environments(job);
    job->environment.atari = job->environment.atari && job->environment.has_gymnasium;
    if (!job_is_stepwise(job))
        return;
    if (!job->evaluation.has_every)
        make_null(job, "/stop/evaluation_reward");
}

START_TEST(any_job_survives_being_written_and_read)
{
    uint64_t state = 0x9E3779B97F4A7C15u;
    for (int round = 0; round < ROUNDS; round++) {
        struct job job;
        draw_job(&state, &job, JOB_REINFORCE);
        make_few(&job);
        make_one_source(&job, round % 4);
        if (job.rollout.mode == JOB_ROLLOUT_EPISODE)
            job.rollout.begin = JOB_BEGIN_RESET;
        if (round % 3 == 0)
            make_null(&job, "/stop/episodes");
        else if (round % 3 == 1)
            make_null(&job, "/stop/running_reward");
        else if (round % 5 == 0)
            job.stop.running_reward = -0.0;
        expect_round_trip(&job);
    }
}
END_TEST

/* Of each algorithm but reinforce. */
START_TEST(any_algorithm_survives_being_written_and_read)
{
    uint64_t state = 0x9E3779B97F4A7C17u;
    for (int round = 0; round < ROUNDS / 2; round++) {
        struct job job;
        draw_job(&state, &job, JOB_VARIANT_PPO + _i);
        make_few(&job);
        make_one_source(&job, round % 4);
        if (round % 2 == 0 && _i == 0)
            make_null(&job, "/algorithm/target_kl");
        if (round % 3 == 0 && job_key_at(JOB_KINDS_OF(job_variant(&job)), "/algorithm/max_grad_norm") != NULL)
            make_null(&job, "/algorithm/max_grad_norm");
        if (job.replay.train_freq.episodes)
            job.observers.count = job.observers.environments = job.observers.groups = 1;
        expect_round_trip(&job);
    }
}
END_TEST

/* Makes of any values ones that the rules on several keys allow. */
static void make_reasonable(uint64_t *state, struct job *job)
{
    job->trainers.batch = 1 + job->trainers.batch % (JOB_UPDATE_SAMPLES_MAX / JOB_TRAINERS_MAX);
    job->data.size = 33 + job->data.size % 32;
    if (job->data.channels == 1) {
        job->data.mean = (struct job_channels){.count = 1, .value = {job->data.mean.value[0]}};
        job->data.std = (struct job_channels){.count = 1, .value = {job->data.std.value[0]}};
    }
    if (job->data.kind == JOB_DATA_CLASS && (!job->trainers.has_class || draw(state) % 2 == 0))
        job->data.kind = JOB_DATA_SYNTHETIC;
    if (job->data.kind != JOB_DATA_SYNTHETIC && job->data.kind != JOB_DATA_CLASS)
        job->data.path[0] = 'x';
    job->server.round.name = (int)(draw(state) % 3);
    if (job->server.round.name != JOB_ROUND_ALL)
        job->server.count = 1;
    if (job->server.round.name == JOB_ROUND_FIRST)
        job->server.round.number = 1 + (uint32_t)(draw(state) % job->trainers.count);
    else if (job->server.round.name == JOB_ROUND_ASYNC)
        job->server.round.number = (uint32_t)(draw(state) % (64 + 1));
}

START_TEST(any_parameter_server_survives_being_written_and_read)
{
    static const char *const nullable[] = {
        "/init",        "/trainers/threads", "/data/limit",        "/evaluation/every",
        "/stop/epochs", "/checkpoint/every", "/checkpoint/every_s"};
    uint64_t state = 0x2545F4914F6CDD1Du;
    for (int round = 0; round < ROUNDS / 2; round++) {
        struct job job;
        draw_job(&state, &job, JOB_PARAMETER_SERVER);
        make_reasonable(&state, &job);
        for (size_t i = 0; i < sizeof nullable / sizeof nullable[0]; i++)
            if (draw(&state) % 3 == 0)
                make_null(&job, nullable[i]);
        if (job.stop.has_epochs && job.data.kind != JOB_DATA_SYNTHETIC && round % 2 == 0)
            make_null(&job, "/stop/updates");
        if (job.data.kind == JOB_DATA_CLASS) {
            job.transport = JOB_TRANSPORT_INLINE;
            job.precision = JOB_PRECISION_FLOAT32;
        }
        if (job.transport == JOB_TRANSPORT_SHARED || job.precision == JOB_PRECISION_BFLOAT16)
            make_null(&job, "/trainers/class");
        expect_round_trip(&job);
    }
}
END_TEST

/* The same of a model-parallel job. */
static void make_reasonable_parallel(uint64_t *state, struct job *job)
{
    job->trainers.batch = 1 + job->trainers.batch % 256;
    job->evaluation.batch = 1 + job->evaluation.batch % 256;
    job->sequence.steps = 1 + job->sequence.steps % 32;
    job->rnn.hidden = 1 + job->rnn.hidden % 2000;
    job->rnn.embedding = 1 + job->rnn.embedding % 2000;
    job->rnn.tokens = 1 + job->rnn.tokens % 16384;
    for (int layer = 0; layer < JOB_LAYERS; layer++) {
        job->placement[layer].name =
            job->trainers.count > 1 || draw(state) % 2 == 0 ? JOB_ON_SERVER : JOB_ON_TRAINER;
        job->placement[layer].number =
            job->placement[layer].name == JOB_ON_SERVER ? (uint32_t)(draw(state) % job->server.count) : 0;
    }
    if (job->data.kind == JOB_DATA_TEXT) {
        job->data.path[0] = 'x';
        job->rnn.has_tokens = false;
        job->rnn.tokens = 0;
        job->sequence.classes = JOB_CLASSES_TOKENS;
    } else {
        job->optimizer.schedule = JOB_SCHEDULE_CONSTANT;
    }
    if (job->optimizer.schedule == JOB_SCHEDULE_PLATEAU)
        job->sequence.held_out = 0.5;
}

START_TEST(any_model_parallel_survives_being_written_and_read)
{
    static const char *const nullable[] = {"/init",
                                           "/trainers/threads",
                                           "/threads/embedding",
                                           "/threads/lstm",
                                           "/stop/updates",
                                           "/threads/decoder",
                                           "/checkpoint/every_s",
                                           "/checkpoint/every",
                                           "/evaluation/every",
                                           "/optimizer/max_norm"};
    uint64_t state = 0x9FB21C651E98DF25u;
    for (int round = 0; round < ROUNDS / 2; round++) {
        struct job job;
        draw_job(&state, &job, JOB_MODEL_PARALLEL);
        make_reasonable_parallel(&state, &job);
        for (size_t i = 0; i < sizeof nullable / sizeof nullable[0]; i++)
            if (draw(&state) % 3 == 0)
                make_null(&job, nullable[i]);
        if (!job.evaluation.has_every)
            job.optimizer.schedule = JOB_SCHEDULE_CONSTANT;
        if (job.stop.has_updates && round % 2 == 0)
            make_null(&job, "/stop/epochs");
        expect_round_trip(&job);
    }
}
END_TEST

/* ---- the schema ---- */

START_TEST(committed_schema_is_the_tables)
{
    char *written = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&written, &bytes);
    ck_assert_int_eq(job_write_schema(stream), 0);
    fclose(stream);
    char *committed = read_text("config/job.schema.json");
    ck_assert_msg(strcmp(written, committed) == 0, "`make documents` writes another config/job.schema.json");
    free(written);
    free(committed);
    FILE *full = fopen("/dev/full", "w");
    ck_assert_int_eq(job_write_schema(full), EOF);
    fclose(full);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("job_keys");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 60);
    tcase_add_test(core, every_bound_of_every_key_holds);
    tcase_add_test(core, every_name_of_every_key_is_taken);
    tcase_add_test(core, table_is_sound);
    tcase_add_test(core, any_job_survives_being_written_and_read);
    tcase_add_loop_test(core, any_algorithm_survives_being_written_and_read, 0,
                        JOB_VARIANTS - JOB_VARIANT_PPO);
    tcase_add_test(core, any_parameter_server_survives_being_written_and_read);
    tcase_add_test(core, any_model_parallel_survives_being_written_and_read);
    tcase_add_test(core, committed_schema_is_the_tables);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
