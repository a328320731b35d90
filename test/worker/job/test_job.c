/* Job files: golden pairs for every rule, overrides, files that cannot be read, the jobs in config/, and
 * numbers that depend on the machine. Runs in the repository's root. */
#include "kernels/base/text.h"
#include "test/worker/job/job_fixture.h"
#include "test/workplace.h"

#include <glob.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- golden pairs: test/job/x.json, and what is said of it or made of it in test/job/x.expected ---- */

START_TEST(golden_pairs)
{
    glob_t inputs, outputs;
    ck_assert_int_eq(glob("test/job/*.json", 0, NULL, &inputs), 0);
    ck_assert_int_eq(glob("test/job/*.expected", 0, NULL, &outputs), 0);
    ck_assert_uint_ge(inputs.gl_pathc, 60);
    ck_assert_uint_eq(inputs.gl_pathc, outputs.gl_pathc);
    for (size_t i = 0; i < inputs.gl_pathc; i++) {
        const char *path = inputs.gl_pathv[i];
        char expected_path[256];
        snprintf(expected_path, sizeof expected_path, "%.*s.expected", (int)strlen(path) - 5, path);
        char *expected = read_text(expected_path);
        struct job job;
        char *problems;
        enum status status = job_read_file(&job, path_of(path), NULL, 0, NULL, &problems);
        bool good = strncmp(path, "test/job/good-", 14) == 0;
        ck_assert_msg(status == (good ? STATUS_OK : STATUS_INVALID), "%s: %s", path, status_name(status));
        size_t bytes;
        char *formatted = good ? job_format(&job, &bytes) : NULL;
        ck_assert_msg(strcmp(good ? formatted : problems, expected) == 0, "%s: expected\n%sgot\n%s", path,
                      expected, good ? formatted : problems);
        free(problems);
        free(formatted);
        free(expected);
    }
    globfree(&inputs);
    globfree(&outputs);
}
END_TEST

/* ---- overrides ---- */

START_TEST(override_problems)
{
    static const struct {
        const char *override, *problem;
    } cases[] = {
        {"observers", "expected /pointer=value, at most 1048576 bytes"},
        {"", "expected /pointer=value, at most 1048576 bytes"},
        {"=1", "expected /pointer=value, at most 1048576 bytes"},
        {"/observers/count", "expected /pointer=value, at most 1048576 bytes"},
        {"/observers/count=0", "expected an integer in 1..1024, got 0"},
        {"/observers/count=", "expected an integer in 1..1024, got \"\""},
        {"/observers/count=four", "expected an integer in 1..1024, got \"four\""},
        {"/observers/count=007", "expected an integer in 1..1024, got \"007\""},
        {"/observers/count=1e999", "expected an integer in 1..1024, got \"1e999\""},
        {"/observers/count=[1", "expected an integer in 1..1024, got \"[1\""},
        {"/observers/cuont=4", "unknown key; did you mean \"count\"?"},
        {"/obsrevers/count=4", "/obsrevers: unknown key; did you mean \"observers\"?"},
        {"/count=4", "unknown key; did you mean /observers/count?"},
        {"/observers/count/x=4", "unknown key"},
        {"/policy/hidden/0=4", "unknown key"},
        {"/observers/0=4", "unknown key"},
        {"/observers/=4", "unknown key"},
        {"/=4", "unknown key"},
        {"/a~1b~0c=4", "unknown key"},
        {"/checkpoint/every=4", NULL},
        {"/checkpoint/every_s=0", "expected null or a number in (0, 1000000], got 0"},
        {"/trainers/count=4", "/trainers: is a key of the kind \"parameter-server\" or \"model-parallel\", "
                              "this job is a \"reinforce\""},
        {"/loss/name=mse", "is a key of the kind \"parameter-server\", this job is a \"reinforce\""},
        {"/agent/threads=4", "/agent: unknown key"},
        {"/kind=model-paralel",
         "expected one of \"reinforce\", \"parameter-server\", \"model-parallel\", got "
         "\"model-paralel\"; did you mean \"model-parallel\"?"},
        {"/observers=4", "expected an object, got 4"},
        {"/observers={\"count\":0}", "/observers/count: expected an integer in 1..1024, got 0"},
        {"/observers={\"count\":1,\"count\":2}", "/observers/count: duplicate key; it stands already at 1:2"},
        {"/observers={\"count\":007}", "007 is not a JSON number: a number has no leading zeros"},
        {"/policy/hidden=[4,]", "a comma behind the last element; JSON has commas only between elements"},
        {"/observers={\"conut\":1}", "/observers/conut: unknown key; did you mean \"count\"?"},
        {"/observers={\"count\":1024,\"environments\":17}",
         "/observers/environments: expected at most 16384 environments, got /observers/count 1024 * "
         "/observers/environments 17 = 17408"},
        {"/observers/environments=16384", NULL},
        {"/policy/hidden=64", NULL},
        {"/policy/hidden=[]", NULL},
        {"/policy/hidden=[1,1,1,1,1,1,1,1]", NULL},
        {"/policy/hidden=[1,1,1,1,1,1,1,1,1]",
         "expected an integer in 1..1024, or an array of 0 to 8 of them, got an array of 9"},
        {"/policy/hidden=0", "expected an integer in 1..1024, or an array of 0 to 8 of them, got 0"},
        {"/policy/hidden=[64,1.5]", "/policy/hidden/1: expected an integer in 1..1024, got 1.5"},
        {"/policy/hidden=[0]", "/policy/hidden/0: expected an integer in 1..1024, got 0"},
        {"/stop/episodes=null", "/stop/running_reward: expected a number where /stop/episodes is null, got "
                                "null: without a limit the job never ends"},
        {"/device=gup", "expected one of \"auto\", \"cpu\", \"gpu\", got \"gup\"; did you mean \"gpu\"?"},
        {"/_anything/at/all=4", NULL},
        {"/observers/_x=4", NULL},
        {"/$schema=4", NULL},
        {"/name=3",
         "expected 1 to 63 of the characters A-Z a-z 0-9 . _ - that begin with neither . nor -, got 3"},
        {"/name=\"3\"", NULL},
        {"/environment/name=", "expected null or 1 to 127 of the characters A-Z a-z 0-9 _ . / : -, got \"\""},
        {"/environment={\"plugin\":\"./libmine.so\"}", NULL},
        {"/environment={\"plugin\":\"a.so\",\"gymnasium\":\"Ant-v5\"}",
         "/environment/gymnasium: expected null where /environment/plugin is \"a.so\", got \"Ant-v5\": an "
         "environment comes from one place"},
        {"/environment/class=Mine",
         "expected null or module:Class, each at most 63 of the characters A-Z a-z 0-9 _ ., got \"Mine\""},
        {"/environment/class=mine.worlds:Corridor", NULL},
        {"/environment/options={\"length\":[4,{\"deep\":true}]}", NULL},
        {"/environment/options=4", "expected an object of at most 2047 bytes, got 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_override(minimal_reinforce, cases[i].override, cases[i].problem);
}
END_TEST

START_TEST(override_problems_of_a_parameter_server)
{
    static const struct {
        const char *override, *problem;
    } cases[] = {
        {"/model/name=ResNet18",
         "expected one of \"resnet18\", \"resnet50\", got \"ResNet18\"; did you mean \"resnet18\"?"},
        {"/model/name=resnet8",
         "expected one of \"resnet18\", \"resnet50\", got \"resnet8\"; did you mean \"resnet18\"?"},
        {"/server/round=first 3", NULL},
        {"/server/round=\"first 3\"", NULL},
        {"/server/round=async 0", NULL},
        {"/server/round=first 6", "expected at most /trainers/count, which is 5, got \"first 6\""},
        {"/server/round=async",
         "expected \"all\", \"first K\" with K in 1..256, or \"async S\" with S in 0..64, "
         "got \"async\""},
        {"/server={\"count\": 2, \"round\": \"async 1\"}",
         "/server/round: expected \"all\" where /server/count is 2, got \"async 1\""},
        {"/data/mean=[0.1,0.2,0.3]", NULL},
        {"/data/mean=[0.1,0.2]",
         "expected an array of 1 or 3 elements, each a number in [0, 1], got an array of 2"},
        {"/data/mean=[0.1,2,0.3]", "/data/mean/1: expected a number in [0, 1], got 2"},
        {"/data/mean=[0.1,02,0.3]", "02 is not a JSON number: a number has no leading zeros"},
        {"/data/mean=0.1", "expected an array of 1 or 3 elements, each a number in [0, 1], got 0.1"},
        {"/data/mean/0=0.1", "unknown key"},
        {"/data/channels=2", "expected 1 or 3, got 2"},
        {"/data/channels=1", NULL},
        {"/data/kind=idx", "/data/path: expected a path where /data/kind is \"idx\", got \"\""},
        {"/data={\"kind\":\"idx\",\"path\":\"/srv/my data\"}", NULL},
        {"/data/path=/srv/my data", NULL},
        {"/init=weights.safetensors", NULL},
        {"/init=null", NULL},
        {"/init=", "expected null or a path of 1 to 1023 bytes, all of them printable UTF-8, got \"\""},
        {"/init=a\xC3",
         "expected null or a path of 1 to 1023 bytes, all of them printable UTF-8, got \"a\\xc3\""},
        {"/stop/epochs=2", "/stop/updates: expected an integer in 1..1000000000 where /data/kind is "
                           "\"synthetic\" and /stop/epochs "
                           "is 2, got null: synthetic data has no epochs; a class has them with "
                           "/data/kind \"class\""},
        {"/data/kind=class", "/trainers/class: expected module:Class, each at most 63 of the characters A-Z "
                             "a-z 0-9 _ . where /data/kind "
                             "is \"class\", got null"},
        {"/stop={\"epochs\":2,\"updates\":9}", NULL},
        {"/trainers/threads=null", NULL},
        {"/trainers/count=257", "expected an integer in 1..256, got 257"},
        {"/optimizer/name=adam", "expected \"sgd\", got \"adam\""},
        {"/optimizer/beta1=0.5", "is a key of the kind \"reinforce\", this job is a \"parameter-server\""},
        {"/observers/count=4",
         "/observers: is a key of the kind \"reinforce\", this job is a \"parameter-server\""},
        {"/observers=4", "is a key of the kind \"reinforce\", this job is a \"parameter-server\""},
        {"/server/rond=all", "unknown key; did you mean \"round\"?"},
        {"/kind=2", "expected one of \"reinforce\", \"parameter-server\", \"model-parallel\", got 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_override(minimal_server, cases[i].override, cases[i].problem);
}
END_TEST

START_TEST(override_problems_of_a_model_parallel)
{
    static const struct {
        const char *override, *problem;
    } cases[] = {
        {"/server/round=async", NULL},
        {"/server/round=first 1", "expected one of \"all\", \"async\", got \"first 1\""},
        {"/placement/lstm=server 0", NULL},
        {"/placement/decoder=trainer", NULL},
        {"/placement/embedding=server 1",
         "expected \"server K\" with K below /server/count, which is 1, got \"server 1\""},
        {"/placement/embedding=server 00",
         "expected \"trainer\", or \"server K\" with K in 0..15, got \"server 00\""},
        {"/placement/embedding=2", "expected \"trainer\", or \"server K\" with K in 0..15, got 2"},
        {"/trainers/count=2",
         "/placement/lstm: expected \"server K\" where /trainers/count is 2, got \"trainer\""},
        {"/server/count=16", NULL},
        {"/loss/classes=batch", NULL},
        {"/optimizer/max_norm=0.25", NULL},
        {"/optimizer/max_norm=null", NULL},
        {"/optimizer/max_norm=0", "expected null or a number in (0, 1000000000], got 0"},
        {"/optimizer/lr=100", NULL},
        {"/threads/decoder=2", NULL},
        {"/data={\"kind\":\"text\",\"path\":\"a.txt\"}", NULL},
        {"/data/kind=text", "/data/path: expected a path where /data/kind is \"text\", got \"\""},
        {"/data/kind=", "expected one of \"synthetic\", \"text\", got \"\""},
        {"/model/tokens=null",
         "expected an integer in 1..1048576 where /data/kind is \"synthetic\", got null"},
        {"/stop/updates=3", NULL},
        {"/stop={\"epochs\":null}", "/stop/epochs: expected an integer in 1..1000000 where /stop/updates is "
                                    "null, got null: without a limit the "
                                    "job never ends"},
        {"/server/rond=all", "unknown key; did you mean \"round\"?"},
        {"/model/width=3", "is a key of the kind \"parameter-server\", this job is a \"model-parallel\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_override(minimal_parallel, cases[i].override, cases[i].problem);
}
END_TEST

/* A name of Stable-Baselines3 or CleanRL leads to the key, where the job has that key. */
START_TEST(names_of_other_programs_are_known)
{
    static const struct {
        const char *override, *problem;
    } cases[] = {
        {"/policy/net_arch=[64,64]", "unknown key; here it is /policy/hidden"},
        {"/policy/activation_fn=tanh", "unknown key; here it is /policy/activation"},
        {"/algorithm/anneal_lr=true", "unknown key; here it is /algorithm/learning_rate_schedule"},
        {"/algorithm/clip_coef=0.1", "unknown key; here it is /algorithm/clip_range"},
        {"/algorithm/clip_vloss=true", "unknown key; here it is /algorithm/clip_range_vf"},
        {"/evaluation/eval_freq=10", "unknown key; here it is /evaluation/every"},
        {"/algorithm/n_envs=8", "unknown key; here it is /observers/environments"},
        {"/observers/num_envs=8", "unknown key; here it is /observers/environments"},
        {"/evaluation/n_eval_episodes=5", "unknown key; here it is /evaluation/episodes"},
        {"/algorithm/n_timesteps=5", "unknown key; here it is /stop/steps"},
        {"/total_timesteps=5", "unknown key; here it is /stop/steps"},
        {"/algorithm/num_steps=5", "unknown key; here it is /algorithm/n_steps"},
        {"/algorithm/norm_adv=true", "unknown key; here it is /algorithm/normalize_advantage"},
        {"/algorithm/update_epochs=4", "unknown key; here it is /algorithm/n_epochs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_override(minimal_ppo, cases[i].override, cases[i].problem);
    expect_override(minimal_reinforce, "/total_timesteps=5", "unknown key");
}
END_TEST

/* The kind decides what a key is, wherever it stands. */
START_TEST(override_of_the_kind_comes_first)
{
    static const char *const overrides[] = {"/server/count=2", "/optimizer/lr=0.5", "/kind=nonsense",
                                            "/kind=\"parameter-server\"", "/model/width=8"};
    struct job job = parse_job("{\"trainers\": {\"count\": 3}, \"kind\": \"reinforce\"}", overrides, 5);
    ck_assert_int_eq(job.kind, JOB_PARAMETER_SERVER);
    ck_assert(job.server.count == 2 && job.trainers.count == 3 && job.model.width == 8);
    ck_assert(job.optimizer.lr == 0.5 && job.optimizer.momentum == 0.9);
    char *got = judge_job("{\"trainers\": {\"count\": 3}, \"kind\": \"parameter-server\"}", overrides, 3);
    ck_assert_str_eq(
        got,
        "--set /kind=nonsense: expected one of \"reinforce\", \"parameter-server\", \"model-parallel\", got "
        "\"nonsense\"\n");
    free(got);
    const char *const reinforce[] = {"/kind=reinforce"};
    got = judge_job("{\"trainers\": {\"count\": 3}, \"kind\": \"parameter-server\"}", reinforce, 1);
    ck_assert_str_eq(got, "job.json:1:2: /trainers: is a key of the kind \"parameter-server\" or "
                          "\"model-parallel\", this job is a \"reinforce\"\n");
    free(got);
}
END_TEST

START_TEST(override_values_replace_what_was_there)
{
    static const char *const overrides[] = {"/observers/count=0",
                                            "/observers/count=7",
                                            "/seed=9",
                                            "/seed=8",
                                            "/name=from-the-command",
                                            "/returns/normalize=true",
                                            "/optimizer/lr=1e-3",
                                            "/policy/hidden=[64, 16]",
                                            "/stop/episodes=null",
                                            "/stop/running_reward=-2.5",
                                            "/rollout/mode=episode"};
    struct job job =
        parse_job("{\"kind\": \"reinforce\", \"observers\": {\"count\": \"wrong\"}, \"seed\": 1}", overrides,
                  sizeof overrides / sizeof overrides[0]);
    ck_assert_uint_eq(job.observers.count, 7);
    ck_assert_uint_eq(job.seed, 8);
    ck_assert_str_eq(job.name, "from-the-command");
    ck_assert(job.returns.normalize);
    ck_assert_double_eq(job.optimizer.lr, 1e-3);
    ck_assert_uint_eq(job.policy.hidden[0].count, 2);
    ck_assert_uint_eq(job.policy.hidden[0].value[1], 16);
    ck_assert(!job.stop.has_episodes && job.stop.has_running_reward);
    ck_assert_double_eq(job.stop.running_reward, -2.5);
    ck_assert_int_eq(job.rollout.mode, JOB_ROLLOUT_EPISODE);
}
END_TEST

START_TEST(override_of_an_object_replaces_the_object)
{
    static const char *const overrides[] = {"/observers={\"environments\": 3}", "/stop={}"};
    struct job job =
        parse_job("{\"kind\": \"reinforce\", \"observers\": {\"count\": 9}, \"stop\": 1}", overrides, 2);
    ck_assert_uint_eq(job.observers.count, 1);
    ck_assert_uint_eq(job.observers.environments, 3);
    ck_assert_uint_eq(job.stop.episodes, 10);
}
END_TEST

START_TEST(override_supplies_what_is_required_and_hides_nothing)
{
    static const char *const overrides[] = {"/kind=reinforce", "/seed=-1", "/seed=2", "/sede=1",
                                            "/log/every=0"};
    struct job job = parse_job("{}", overrides, 1);
    ck_assert_int_eq(job.kind, JOB_REINFORCE);
    /* File first, then the overrides in their order; the wrong one that a later one replaced is not told. */
    char *got = judge_job("{\"sed\": 1}", overrides, 5);
    ck_assert_str_eq(got, "job.json:1:2: /sed: unknown key; did you mean \"seed\"?\n"
                          "--set /sede=1: unknown key; did you mean \"seed\"?\n"
                          "--set /log/every=0: expected an integer in 1..1000000, got 0\n");
    free(got);
    got = judge_job("{\"kind\": ", overrides, 5);
    ck_assert_str_eq(got, "job.json:1:10: expected a value, got the end of the file\n"
                          "--set /sede=1: unknown key; did you mean \"seed\"?\n"
                          "--set /log/every=0: expected an integer in 1..1000000, got 0\n");
    free(got);
}
END_TEST

START_TEST(nothing_hostile_reaches_the_terminal)
{
    static const char *const overrides[] = {"/\x1B[2J=\x9B", "\x07", "/name=\xFF\xE2\x80\x8B",
                                            "/seed=\"\xC2\x85\""};
    struct job job;
    char *problems;
    ck_assert_int_eq(job_parse(&job, "{}", 2, "a\x1B]0;b\n.json", overrides, 4, &problems), STATUS_INVALID);
    for (size_t i = 0; i < strlen(problems); i++)
        ck_assert((unsigned char)problems[i] >= 0x20 || problems[i] == '\n');
    ck_assert_ptr_nonnull(strstr(problems, "a\\u001b]0;b\\u000a.json:1:1: /kind: "));
    ck_assert_ptr_nonnull(strstr(problems, "--set /\\u001b[2J=\\x9b: /\\u001b[2J: unknown key\n"));
    ck_assert_ptr_nonnull(strstr(problems, "got \"\\xff\\u200b\"\n"));
    ck_assert_ptr_nonnull(strstr(problems, "got \"\\u0085\"\n"));
    free(problems);
}
END_TEST

/* ---- files ---- */

static void expect_file(const char *path, enum status expected, const char *problem)
{
    struct job job;
    char *problems;
    char line[512];
    enum status status = job_read_file(&job, path_of(path), NULL, 0, NULL, &problems);
    ck_assert_msg(status == expected, "%s: %s", path, status_name(status));
    snprintf(line, sizeof line, "%s: %s\n", path, problem);
    ck_assert_str_eq(problems, line);
    free(problems);
}

START_TEST(files_that_cannot_be_read)
{
    char folder[] = "/tmp/test_job_XXXXXX", path[64];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chmod(folder, 0755), 0);
    expect_file(folder, STATUS_IO, "found a directory, expected a regular file");
    expect_file("/dev/null", STATUS_IO, "found a device, expected a regular file");
    snprintf(path, sizeof path, "%s/job.json", folder);
    expect_file(path, STATUS_NOT_FOUND, "No such file or directory");
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    expect_file(path, STATUS_IO, "found a fifo, expected a regular file");
    ck_assert_int_eq(unlink(path), 0);

    FILE *file = fopen(path, "w");
    fputs("{\"kind\": \"reinforce\"}", file);
    fclose(file);
    ck_assert_int_eq(chmod(path, 0), 0);
    bool root = geteuid() == 0; /* root may read everything: look with other eyes */
    ck_assert_int_eq(root ? seteuid(65534) : 0, 0);
    expect_file(path, STATUS_PERMISSION, "Permission denied");
    ck_assert_int_eq(root ? seteuid(0) : 0, 0);

    ck_assert_int_eq(chmod(path, 0600), 0);
    ck_assert_int_eq(truncate(path, JOB_TEXT_BYTES_MAX + 1), 0);
    expect_file(path, STATUS_INVALID, "longer than a job file may be (1048576 bytes)");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

START_TEST(texts_at_the_limit_of_length)
{
    char *text = malloc(JOB_TEXT_BYTES_MAX + 1);
    memset(text, ' ', JOB_TEXT_BYTES_MAX + 1);
    memcpy(text, minimal_reinforce, 21);
    struct job job;
    char *problems;
    ck_assert_int_eq(job_parse(&job, text, JOB_TEXT_BYTES_MAX, "a.json", NULL, 0, &problems), STATUS_OK);
    ck_assert_int_eq(job_parse(&job, text, JOB_TEXT_BYTES_MAX + 1, "a.json", NULL, 0, &problems),
                     STATUS_INVALID);
    ck_assert_str_eq(problems, "a.json: longer than a job file may be (1048576 bytes)\n");
    free(problems);
    free(text);
}
END_TEST

START_TEST(name_comes_from_the_file)
{
    static const char *const names[][2] = {
        {"cartpole.json", "cartpole"},
        {"/a/b.c/d.e.json", "d.e"},
        {"./x", "x"},
        {"a b.json", NULL},
        {".json", NULL},
        {"dir/", NULL},
        {"", NULL},
        {"-x.json", NULL},
        {"x.json/y", "y"},
        {"\xC3\xA9.json", NULL},
        {"a.b", "a"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct job job;
        char *problems;
        enum status status = job_parse(&job, minimal_reinforce, 21, names[i][0], NULL, 0, &problems);
        ck_assert_msg(status == (names[i][1] == NULL ? STATUS_INVALID : STATUS_OK), "%s", names[i][0]);
        if (names[i][1] != NULL)
            ck_assert_str_eq(job.name, names[i][1]);
        else
            ck_assert_ptr_nonnull(strstr(problems, "/name: this key is required"));
        free(problems);
    }
}
END_TEST

/* ---- config/ ---- */

static struct job read_config(const char *path)
{
    struct job job;
    char *problems;
    ck_assert_msg(job_read_file(&job, path_of(path), NULL, 0, NULL, &problems) == STATUS_OK, "%s", problems);
    return job;
}

START_TEST(config_of_the_tutorials)
{
    struct job one = read_config("config/cartpole.json");
    ck_assert_str_eq(one.name, "cartpole");
    ck_assert(one.observers.count == 1 && one.rollout.mode == JOB_ROLLOUT_EPISODE);
    ck_assert(one.returns.gamma == 0.99 && one.returns.normalize && one.loss.reduction == JOB_REDUCTION_SUM);
    ck_assert(one.running_reward.of == JOB_OF_MIN && one.running_reward.weight == 0.05);
    ck_assert(one.stop.episodes == 5000 && one.stop.has_running_reward && one.stop.running_reward == 475);
    ck_assert(one.log.every == 10 && one.seed == 1);
    struct job two = read_config("config/cartpole-batch.json");
    ck_assert_str_eq(two.name, "cartpole-batch");
    ck_assert(two.observers.count == 10 && two.observers.environments == 1);
    ck_assert(two.rollout.mode == JOB_ROLLOUT_STEPS && two.rollout.steps == 500);
    ck_assert(two.coalesce.mode == JOB_COALESCE_BARRIER && two.returns.gamma == 1 && !two.returns.normalize);
    ck_assert_int_eq(two.loss.reduction, JOB_REDUCTION_MEAN_OVER_ENVIRONMENTS);
    ck_assert(two.running_reward.of == JOB_OF_MEAN && two.running_reward.weight == 0.5);
    ck_assert(two.stop.has_episodes && two.stop.episodes == 10 && !two.stop.has_running_reward);
    ck_assert_uint_eq(two.log.every, 1);
}
END_TEST

/* Word for word the second tutorial's other program, which is what the kind's defaults say too. */
START_TEST(config_of_the_parameter_server)
{
    static const char *const overrides[] = {"/name=job"};
    struct job job, plain = parse_job(minimal_server, NULL, 0);
    char *problems;
    ck_assert_msg(job_read_file(&job, path_of("config/resnet50-ps.json"), overrides, 1, NULL, &problems) ==
                      STATUS_OK,
                  "%s", problems);
    ck_assert(same_job(&job, &plain));
    job = read_config("config/resnet50-ps.json");
    ck_assert_str_eq(job.name, "resnet50-ps");
    ck_assert(job.model.name == JOB_MODEL_RESNET50 && job.model.classes == 30 && job.data.size == 64);
    ck_assert(job.trainers.count == 5 && job.trainers.batch == 20 && job.loss.name == JOB_LOSS_MSE);
    ck_assert(job.optimizer.lr == 0.001 && job.optimizer.momentum == 0.9 && job.stop.updates == 6);
}
END_TEST

START_TEST(config_of_the_clothes)
{
    struct job job = read_config("config/fashion-mnist.json");
    ck_assert_str_eq(job.name, "fashion-mnist");
    ck_assert(job.model.name == JOB_MODEL_RESNET18 && job.model.classes == 10 && job.model.width == 64);
    ck_assert(job.trainers.count == 2 && job.server.round.name == JOB_ROUND_ALL);
    ck_assert(job.loss.name == JOB_LOSS_CROSS_ENTROPY && job.optimizer.momentum == 0.9);
    ck_assert_int_eq(job.optimizer.schedule, JOB_SCHEDULE_LINEAR);
    ck_assert_int_eq(job.data.kind, JOB_DATA_IDX);
    ck_assert_str_eq(job.data.path, "/usr/share/datasets/fashion-mnist"); /* scripts/run looks for it */
    ck_assert(job.data.size == 32 && job.data.fit == JOB_FIT_PAD && job.data.channels == 3);
    ck_assert(job.evaluation.has_every && job.evaluation.every == 1);
    ck_assert(!job.stop.has_updates && job.stop.has_epochs && job.stop.epochs == 2);
}
END_TEST

/* The tutorial's sizes; its odd loss is all that is not a default, and one thread each. */
START_TEST(config_of_the_language_model)
{
    static const char *const overrides[] = {"/name=job", "/loss/classes=tokens", "/trainers/threads=null",
                                            "/threads={}"};
    struct job job, plain = parse_job(minimal_parallel, NULL, 0);
    char *problems;
    ck_assert_msg(job_read_file(&job, path_of("config/rnn.json"), overrides, 4, NULL, &problems) == STATUS_OK,
                  "%s", problems);
    ck_assert(same_job(&job, &plain));
    job = read_config("config/rnn.json");
    ck_assert_str_eq(job.name, "rnn");
    ck_assert(job.sequence.classes == JOB_CLASSES_BATCH && job.trainers.threads == 1);
    for (int layer = 0; layer < JOB_LAYERS; layer++)
        ck_assert(job.threads[layer].has && job.threads[layer].count == 1);
}
END_TEST

START_TEST(config_of_the_text)
{
    struct job job = read_config("config/rnn-text.json");
    ck_assert_str_eq(job.name, "rnn-text");
    ck_assert(job.rnn.embedding == 200 && job.rnn.hidden == 200 && job.rnn.layers == 2);
    ck_assert(job.rnn.dropout == 0.2 && !job.rnn.has_tokens && job.rnn.tokens == 0);
    ck_assert(job.sequence.steps == 35 && job.trainers.batch == 20 && job.trainers.count == 1);
    ck_assert(job.optimizer.lr == 20 && job.optimizer.momentum == 0 && job.sequence.decay == 0.25);
    ck_assert(job.optimizer.schedule == JOB_SCHEDULE_PLATEAU);
    ck_assert(job.sequence.has_max_norm && job.sequence.max_norm == 0.25);
    ck_assert_int_eq(job.data.kind, JOB_DATA_TEXT);
    ck_assert_str_eq(job.data.path, "build/data/kjv.txt"); /* scripts/run looks for it */
    ck_assert(job.sequence.held_out == 0.1 && job.sequence.minimum_count > 1);
    ck_assert(job.evaluation.has_every && job.evaluation.every == 1 && job.checkpoint.has_every);
    ck_assert(job.stop.has_epochs && !job.stop.has_updates);
    ck_assert(job.placement[JOB_LAYER_LSTM].name == JOB_ON_TRAINER &&
              job.placement[JOB_LAYER_DECODER].name == JOB_ON_SERVER);
}
END_TEST

/* ---- what depends on the machine ---- */

static uint32_t threads_of(const char *trainers, const char *threads)
{
    const char *overrides[] = {trainers, threads};
    struct job job = parse_job(minimal_server, overrides, 2);
    job_resolve(&job);
    ck_assert(job.trainers.has_threads);
    return job.trainers.threads;
}

START_TEST(threads_are_fixed)
{
    cpu_set_t all, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    uint32_t processors = (uint32_t)CPU_COUNT(&all);
    ck_assert_uint_eq(threads_of("/trainers/count=1", "/trainers/threads=null"), processors);
    ck_assert_uint_eq(threads_of("/trainers/count=2", "/trainers/threads=null"),
                      processors < 2 ? 1 : processors / 2);
    ck_assert_uint_eq(threads_of("/trainers/count=256", "/trainers/threads=null"),
                      processors < 256 ? 1 : processors / 256);
    ck_assert_uint_eq(threads_of("/trainers/count=1", "/trainers/threads=77"), 77);
    CPU_ZERO(&one);
    for (int i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    ck_assert_uint_eq(threads_of("/trainers/count=1", "/trainers/threads=null"), 1);
    ck_assert_int_eq(sched_setaffinity(0, sizeof all, &all), 0);
    struct job reinforce = parse_job(minimal_reinforce, NULL, 0), resolved = reinforce;
    job_resolve(&resolved);
    ck_assert(same_job(&reinforce, &resolved));
}
END_TEST

START_TEST(threads_of_layers_are_fixed)
{
    static const char *const overrides[] = {"/threads/lstm=77", "/placement/lstm=server 0",
                                            "/trainers/count=256"};
    cpu_set_t all;
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    uint32_t processors = (uint32_t)CPU_COUNT(&all);
    struct job job = parse_job(minimal_parallel, overrides, 3);
    job_resolve(&job);
    ck_assert(job.threads[JOB_LAYER_EMBEDDING].has && job.threads[JOB_LAYER_EMBEDDING].count == processors);
    ck_assert(job.threads[JOB_LAYER_LSTM].has && job.threads[JOB_LAYER_LSTM].count == 77);
    ck_assert(job.threads[JOB_LAYER_DECODER].has && job.threads[JOB_LAYER_DECODER].count == processors);
    ck_assert(job.trainers.has_threads && job.trainers.threads == (processors < 256 ? 1 : processors / 256));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("job");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 60);
    tcase_add_test(core, golden_pairs);
    tcase_add_test(core, override_problems);
    tcase_add_test(core, override_problems_of_a_parameter_server);
    tcase_add_test(core, override_problems_of_a_model_parallel);
    tcase_add_test(core, names_of_other_programs_are_known);
    tcase_add_test(core, override_of_the_kind_comes_first);
    tcase_add_test(core, override_values_replace_what_was_there);
    tcase_add_test(core, override_of_an_object_replaces_the_object);
    tcase_add_test(core, override_supplies_what_is_required_and_hides_nothing);
    tcase_add_test(core, nothing_hostile_reaches_the_terminal);
    tcase_add_test(core, files_that_cannot_be_read);
    tcase_add_test(core, texts_at_the_limit_of_length);
    tcase_add_test(core, name_comes_from_the_file);
    tcase_add_test(core, config_of_the_tutorials);
    tcase_add_test(core, config_of_the_parameter_server);
    tcase_add_test(core, config_of_the_clothes);
    tcase_add_test(core, config_of_the_language_model);
    tcase_add_test(core, config_of_the_text);
    tcase_add_test(core, threads_are_fixed);
    tcase_add_test(core, threads_of_layers_are_fixed);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
