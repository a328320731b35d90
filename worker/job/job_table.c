/* The one table of a job file's keys; see the header. The table's order is the order in which a job is
 * written, and its descriptions are what an editor shows that knows the schema. What is done with a line is
 * in job_key.c. */
#include "worker/job/job_table.h"

#include "worker/environment/environment.h"

#include <float.h>

#define SEED_MAX 9007199254740991.0 /* 2^53 - 1: the largest integer that every JSON reader keeps */
#define HIDDEN_MAX 5792             /* a weight of 4 hidden * hidden floats is as much as a message carries */

/* clang-format off */
#define AT(member) .offset = offsetof(struct job, member), .bytes = sizeof(((struct job *)0)->member)
#define RANGE(low, high) .min = (low), .max = (high)
#define BY_DEFAULT(value) .default_number = (value)
#define NULLABLE(member) .nullable = true, .offset_present = offsetof(struct job, member)
/* clang-format on */

enum {
    ANY = JOB_KINDS_ALL,
    REINFORCE = JOB_KINDS_OF(JOB_REINFORCE),
    SERVER = JOB_KINDS_OF(JOB_PARAMETER_SERVER),
    PARALLEL = JOB_KINDS_OF(JOB_MODEL_PARALLEL),
    TRAINERS = SERVER | PARALLEL, /* both have servers and trainers */
};

static const char *const kind_names[] = {[JOB_REINFORCE] = "reinforce",
                                         [JOB_PARAMETER_SERVER] = "parameter-server",
                                         [JOB_MODEL_PARALLEL] = "model-parallel",
                                         NULL};
static const char *const device_names[] = {
    [JOB_DEVICE_AUTO] = "auto", [JOB_DEVICE_CPU] = "cpu", [JOB_DEVICE_GPU] = "gpu", NULL};
static const char *const rollout_names[] = {
    [JOB_ROLLOUT_STEPS] = "steps", [JOB_ROLLOUT_EPISODE] = "episode", NULL};
static const char *const coalesce_names[] = {
    [JOB_COALESCE_OFF] = "off", [JOB_COALESCE_BARRIER] = "barrier", [JOB_COALESCE_DYNAMIC] = "dynamic", NULL};
static const char *const reduction_names[] = {
    [JOB_REDUCTION_SUM] = "sum", [JOB_REDUCTION_MEAN_OVER_ENVIRONMENTS] = "mean_over_environments", NULL};
static const char *const adam_names[] = {"adam", NULL};
static const char *const sgd_names[] = {"sgd", NULL};
static const char *const of_names[] = {[JOB_OF_MIN] = "min", [JOB_OF_MEAN] = "mean", NULL};
static const char *const transport_names[] = {
    [JOB_TRANSPORT_SHARED] = "shared", [JOB_TRANSPORT_INLINE] = "inline", NULL};
static const char *const model_names[] = {
    [JOB_MODEL_RESNET18] = "resnet18", [JOB_MODEL_RESNET50] = "resnet50", NULL};
static const char *const round_names[] = {
    [JOB_ROUND_ALL] = "all", [JOB_ROUND_FIRST] = "first", [JOB_ROUND_ASYNC] = "async", NULL};
static const char *const loss_names[] = {
    [JOB_LOSS_MSE] = "mse", [JOB_LOSS_CROSS_ENTROPY] = "cross_entropy", NULL};
static const char *const schedule_names[] = {
    [JOB_SCHEDULE_CONSTANT] = "constant", [JOB_SCHEDULE_LINEAR] = "linear", NULL};
static const char *const data_names[] = {[JOB_DATA_SYNTHETIC] = "synthetic",
                                         [JOB_DATA_IDX] = "idx",
                                         [JOB_DATA_CIFAR] = "cifar",
                                         [JOB_DATA_FOLDER] = "folder",
                                         NULL};
static const char *const rnn_names[] = {"rnn", NULL};
static const char *const place_names[] = {"trainer", "server", NULL};
static const char *const class_names[] = {
    [JOB_CLASSES_TOKENS] = "tokens", [JOB_CLASSES_BATCH] = "batch", NULL};
static const char *const parallel_round_names[] = {
    [JOB_ROUND_ALL] = "all", [JOB_ROUND_FIRST] = "", [JOB_ROUND_ASYNC] = "async", NULL};
static const char *const parallel_schedule_names[] = {[JOB_SCHEDULE_CONSTANT] = "constant",
                                                      [JOB_SCHEDULE_LINEAR] = "",
                                                      [JOB_SCHEDULE_PLATEAU] = "plateau",
                                                      NULL};
static const char *const parallel_data_names[] = {[JOB_DATA_SYNTHETIC] = "synthetic",
                                                  [JOB_DATA_IDX] = "",
                                                  [JOB_DATA_CIFAR] = "",
                                                  [JOB_DATA_FOLDER] = "",
                                                  [JOB_DATA_TEXT] = "text",
                                                  NULL};
static const char *const fit_names[] = {[JOB_FIT_PAD] = "pad", [JOB_FIT_RESIZE] = "resize", NULL};

/* What binds several keys of a group; the table says what each of them may be. A stop without either limit
 * would be none. */
#define STOP_RULE(one, other, type)                                                                          \
    "\"if\": {\"properties\": {\"" one "\": {\"type\": \"null\"}}, \"required\": [\"" one                    \
    "\"]},\n          "                                                                                      \
    "\"then\": {\"properties\": {\"" other "\": {\"type\": \"" type "\"}}, \"required\": [\"" other "\"]}"

static const char server_rule[] =
    "\"if\": {\"properties\": {\"round\": {\"pattern\": \"^(first|async)\"}}, \"required\": [\"round\"]},\n"
    "          \"then\": {\"properties\": {\"count\": {\"const\": 1}}}";

static const char parallel_data_rule[] =
    "\"if\": {\"properties\": {\"kind\": {\"const\": \"text\"}}, \"required\": [\"kind\"]},\n"
    "          \"then\": {\"properties\": {\"path\": {\"minLength\": 1}}, \"required\": [\"path\"]}";

static const char data_rule[] =
    "\"if\": {\"properties\": {\"kind\": {\"const\": \"synthetic\"}}},\n"
    "          \"else\": {\"properties\": {\"path\": {\"minLength\": 1}}, \"required\": [\"path\"]},\n"
    "          \"dependentSchemas\": {\"channels\": {\"if\": {\"properties\": {\"channels\": {\"const\": "
    "1}}}, "
    "\"then\": {\"properties\": {\"mean\": {\"maxItems\": 1}, \"std\": {\"maxItems\": 1}}}}}";

const struct job_key job_keys[] = {
    {"/kind", ANY, JOB_ENUM, AT(kind), .names = kind_names, .required = true,
     .description =
         "what the job does; reinforce: one agent learns a policy from the episodes of its observers; "
         "parameter-server: trainers learn a model together, whose parameters the servers keep; "
         "model-parallel: the parts of one model live on several workers, which call each other"},
    {"/name", ANY, JOB_NAME, AT(name),
     .description = "names the run directory; by default the file's own name without its ending"},
    {"/seed", ANY, JOB_INTEGER, AT(seed), RANGE(0, SEED_MAX), BY_DEFAULT(543),
     .description = "every random draw follows from it: the same seed gives the same log"},
    {"/device", ANY, JOB_ENUM, AT(device), .names = device_names, BY_DEFAULT(JOB_DEVICE_AUTO),
     .description = "where the model is computed; auto: on a GPU if one works, else on the CPU"},

    {"/observers", REINFORCE, JOB_OBJECT, .description = "the processes that step environments"},
    {"/observers/count", REINFORCE, JOB_INTEGER, AT(observers.count), RANGE(1, 1024), BY_DEFAULT(1),
     .description = "observer processes"},
    {"/observers/environments", REINFORCE, JOB_INTEGER, AT(observers.environments),
     RANGE(1, JOB_ENVIRONMENTS_MAX), BY_DEFAULT(1),
     .description = "environments in each observer; at most 16384 in all of them together"},

    {"/environment", REINFORCE, JOB_OBJECT, .description = "the world that is learned"},
    {"/environment/name", REINFORCE, JOB_ENVIRONMENT, AT(environment.name), .names = environment_names,
     BY_DEFAULT(0), .description = "as in Gymnasium's registry"},

    {"/rollout", REINFORCE, JOB_OBJECT, .description = "what is played between two updates of the policy"},
    {"/rollout/mode", REINFORCE, JOB_ENUM, AT(rollout.mode), .names = rollout_names,
     BY_DEFAULT(JOB_ROLLOUT_STEPS),
     .description = "steps: so many steps, beginning anew when an episode ends; episode: one whole episode"},
    {"/rollout/steps", REINFORCE, JOB_INTEGER, AT(rollout.steps), RANGE(1, 100000), BY_DEFAULT(500),
     .description = "steps of each environment; binds the mode steps only"},

    {"/coalesce", REINFORCE, JOB_OBJECT, .description = "how requests for actions become launches"},
    {"/coalesce/mode", REINFORCE, JOB_ENUM, AT(coalesce.mode), .names = coalesce_names,
     BY_DEFAULT(JOB_COALESCE_BARRIER),
     .description =
         "off: a launch per request; barrier: when every living environment has asked; dynamic: at "
         "max_batch rows or after max_delay_us"},
    {"/coalesce/max_batch", REINFORCE, JOB_INTEGER, AT(coalesce.max_batch), RANGE(1, JOB_ENVIRONMENTS_MAX),
     BY_DEFAULT(64), .description = "rows at which a batch is launched; binds the mode dynamic only"},
    {"/coalesce/max_delay_us", REINFORCE, JOB_INTEGER, AT(coalesce.max_delay_us), RANGE(0, 1000000),
     BY_DEFAULT(0),
     .description = "microseconds that the oldest row may wait, 0 takes what is there; binds dynamic only"},

    {"/policy", REINFORCE, JOB_OBJECT, .description = "the network: affine, dropout, ReLU, affine, softmax"},
    {"/policy/hidden", REINFORCE, JOB_INTEGER, AT(policy.hidden), RANGE(1, 1024), BY_DEFAULT(128),
     .list_of_one = true, .description = "widths of the hidden layers, of which there is one"},
    {"/policy/dropout", REINFORCE, JOB_NUMBER, AT(policy.dropout), RANGE(0, 1), .max_open = true,
     BY_DEFAULT(0.6), .description = "probability with which a hidden unit is dropped"},

    {"/returns", REINFORCE, JOB_OBJECT, .description = "what an action was worth"},
    {"/returns/gamma", REINFORCE, JOB_NUMBER, AT(returns.gamma), RANGE(0, 1), BY_DEFAULT(1),
     .description = "discount of a reward per step of waiting for it"},
    {"/returns/normalize", REINFORCE, JOB_BOOLEAN, AT(returns.normalize), BY_DEFAULT(0),
     .description = "bring each environment's returns to mean 0 and standard deviation 1"},

    {"/transport", TRAINERS, JOB_ENUM, AT(transport), .names = transport_names,
     BY_DEFAULT(JOB_TRANSPORT_SHARED),
     .description =
         "how gradients, parameters and activations travel; shared: in memory that both ends map, "
         "without a copy; inline: in messages, as they do between hosts. The numbers are the same"},

    {"/model", SERVER, JOB_OBJECT, .description = "what is trained: a ResNet as torchvision's"},
    {"/model/name", SERVER, JOB_ENUM, AT(model.name), .names = model_names, BY_DEFAULT(JOB_MODEL_RESNET50),
     .description = "the number is that of its layers"},
    {"/model/classes", SERVER, JOB_INTEGER, AT(model.classes), RANGE(1, 100000), BY_DEFAULT(30),
     .description = "outputs: the labels are 0 to one less"},
    {"/model/width", SERVER, JOB_INTEGER, AT(model.width), RANGE(1, 1024), BY_DEFAULT(64),
     .description = "channels of the first stage; 64 is the paper's"},

    {"/model", PARALLEL, JOB_OBJECT,
     .description = "what is trained: a language model of an embedding, an LSTM and a decoder"},
    {"/model/name", PARALLEL, JOB_CHOICE, AT(rnn.name), .names = rnn_names, BY_DEFAULT(0),
     .description = "the architecture"},
    {"/model/tokens", PARALLEL, JOB_INTEGER, AT(rnn.tokens), RANGE(1, JOB_TOKENS_MAX),
     NULLABLE(rnn.has_tokens), BY_DEFAULT(10),
     .description = "the vocabulary of synthetic data; null with a text, which brings its own"},
    {"/model/embedding", PARALLEL, JOB_INTEGER, AT(rnn.embedding), RANGE(1, 16384), BY_DEFAULT(2),
     .description = "numbers that stand for a token"},
    {"/model/hidden", PARALLEL, JOB_INTEGER, AT(rnn.hidden), RANGE(1, HIDDEN_MAX), BY_DEFAULT(3),
     .description = "width of each LSTM layer"},
    {"/model/layers", PARALLEL, JOB_INTEGER, AT(rnn.layers), RANGE(1, JOB_LSTM_LAYERS_MAX), BY_DEFAULT(4),
     .description = "LSTM layers"},
    {"/model/dropout", PARALLEL, JOB_NUMBER, AT(rnn.dropout), RANGE(0, 1), .max_open = true, BY_DEFAULT(0.5),
     .description = "probability with which a unit is dropped: behind the embedding and every LSTM layer"},

    {"/placement", PARALLEL, JOB_OBJECT,
     .description = "where each part of the model lives: \"trainer\", where there is one trainer only, or "
                    "\"server K\". The numbers are the same"},
    {"/placement/embedding", PARALLEL, JOB_PLACE, AT(placement[JOB_LAYER_EMBEDDING]), .names = place_names,
     BY_DEFAULT(1), .description = "the worker with the table of embeddings"},
    {"/placement/lstm", PARALLEL, JOB_PLACE, AT(placement[JOB_LAYER_LSTM]), .names = place_names,
     BY_DEFAULT(0), .description = "the worker with the LSTM layers"},
    {"/placement/decoder", PARALLEL, JOB_PLACE, AT(placement[JOB_LAYER_DECODER]), .names = place_names,
     BY_DEFAULT(1), .description = "the worker with the layer that turns the LSTM's output into logits"},

    {"/threads", PARALLEL, JOB_OBJECT,
     .description = "math threads of each part, wherever it lives, for they can change a sum; null: all "
                    "processors, settled when the run begins"},
    {"/threads/embedding", PARALLEL, JOB_INTEGER, AT(threads[JOB_LAYER_EMBEDDING].count), RANGE(1, 1024),
     NULLABLE(threads[JOB_LAYER_EMBEDDING].has), .null_by_default = true, .description = "of the embedding"},
    {"/threads/lstm", PARALLEL, JOB_INTEGER, AT(threads[JOB_LAYER_LSTM].count), RANGE(1, 1024),
     NULLABLE(threads[JOB_LAYER_LSTM].has), .null_by_default = true, .description = "of the LSTM"},
    {"/threads/decoder", PARALLEL, JOB_INTEGER, AT(threads[JOB_LAYER_DECODER].count), RANGE(1, 1024),
     NULLABLE(threads[JOB_LAYER_DECODER].has), .null_by_default = true, .description = "of the decoder"},

    {"/init", TRAINERS, JOB_PATH, AT(init.path), RANGE(1, JOB_PATH_BYTES - 1), NULLABLE(init.has_path),
     .null_by_default = true,
     .description = "a safetensors file with the values that the model begins with; null: drawn at random"},

    {"/trainers", TRAINERS, JOB_OBJECT, .description = "the processes that compute gradients"},
    {"/trainers/count", SERVER, JOB_INTEGER, AT(trainers.count), RANGE(1, JOB_TRAINERS_MAX), BY_DEFAULT(5),
     .description = "trainer processes"},
    {"/trainers/batch", SERVER, JOB_INTEGER, AT(trainers.batch), RANGE(1, 65536), BY_DEFAULT(20),
     .description = "samples of each trainer in a step; at most 1048576 in all of them together"},
    {"/trainers/count", PARALLEL, JOB_INTEGER, AT(trainers.count), RANGE(1, JOB_TRAINERS_MAX), BY_DEFAULT(1),
     .description = "trainer processes, which share the parts; the first one leads"},
    {"/trainers/batch", PARALLEL, JOB_INTEGER, AT(trainers.batch), RANGE(1, 65536), BY_DEFAULT(3),
     .description = "columns of tokens of each trainer; at most 1048576 in all of them together"},
    {"/trainers/threads", TRAINERS, JOB_INTEGER, AT(trainers.threads), RANGE(1, 1024),
     NULLABLE(trainers.has_threads), .null_by_default = true,
     .description = "math threads of each trainer (of a model-parallel job: of its loss); null: processors / "
                    "trainers, at least 1, settled when the run begins"},

    {"/server", SERVER, JOB_OBJECT, .schema_rule = server_rule,
     .description = "the processes that keep the parameters and move them"},
    {"/server/count", SERVER, JOB_INTEGER, AT(server.count), RANGE(1, JOB_SERVERS_MAX), BY_DEFAULT(1),
     .description = "parameter server processes, each with a part of the parameters"},
    {"/server/round", SERVER, JOB_ROUND, AT(server.round), .names = round_names, BY_DEFAULT(JOB_ROUND_ALL),
     .description = "whose gradients make an update; all: every trainer's; first K: those of the K trainers "
                    "that are done first; async S: each alone, computed from parameters at most S updates "
                    "old. The last two with one server only"},

    {"/server", PARALLEL, JOB_OBJECT,
     .description = "the processes that hold the parts which trainers share"},
    {"/server/count", PARALLEL, JOB_INTEGER, AT(server.count), RANGE(1, JOB_SERVERS_MAX), BY_DEFAULT(1),
     .description = "server processes"},
    {"/server/round", PARALLEL, JOB_ENUM, AT(server.round.rule), .names = parallel_round_names,
     BY_DEFAULT(JOB_ROUND_ALL),
     .description = "whose gradients make an update; all: every trainer's, added up; async: each alone, when "
                    "it comes, from the parameters that its forward read, however old they are by then"},

    {"/loss", ANY, JOB_OBJECT, .description = "what is minimized"},
    {"/loss/reduction", REINFORCE, JOB_ENUM, AT(loss.reduction), .names = reduction_names,
     BY_DEFAULT(JOB_REDUCTION_SUM),
     .description =
         "the sum of -log probability * return over all rows, or that divided by the environments"},

    {"/loss/name", SERVER, JOB_ENUM, AT(loss.name), .names = loss_names, BY_DEFAULT(JOB_LOSS_MSE),
     .description = "mse: mean square distance to the one-hot label; cross_entropy: of the softmax"},
    {"/loss/classes", PARALLEL, JOB_ENUM, AT(sequence.classes), .names = class_names,
     BY_DEFAULT(JOB_CLASSES_TOKENS),
     .description =
         "what the cross entropy takes for classes; tokens: the vocabulary; batch: the columns of a "
         "batch, as the tutorial has it, with synthetic data only"},

    {"/optimizer", ANY, JOB_OBJECT, .description = "how a gradient moves the parameters"},
    {"/optimizer/name", REINFORCE, JOB_CHOICE, AT(optimizer.name), .names = adam_names, BY_DEFAULT(0),
     .description = "the method"},
    {"/optimizer/name", TRAINERS, JOB_CHOICE, AT(optimizer.name), .names = sgd_names, BY_DEFAULT(0),
     .description = "the method"},
    {"/optimizer/lr", REINFORCE, JOB_NUMBER, AT(optimizer.lr), RANGE(0, 10), .min_open = true,
     BY_DEFAULT(0.01), .description = "learning rate"},
    {"/optimizer/lr", SERVER, JOB_NUMBER, AT(optimizer.lr), RANGE(0, 10), .min_open = true, BY_DEFAULT(0.001),
     .description = "learning rate, of the first update"},
    {"/optimizer/lr", PARALLEL, JOB_NUMBER, AT(optimizer.lr), RANGE(0, 100), .min_open = true,
     BY_DEFAULT(0.05), .description = "learning rate, of the first update"},
    {"/optimizer/beta1", REINFORCE, JOB_NUMBER, AT(optimizer.beta1), RANGE(0, 1), .max_open = true,
     BY_DEFAULT(0.9), .description = "decay of the gradient's running mean"},
    {"/optimizer/beta2", REINFORCE, JOB_NUMBER, AT(optimizer.beta2), RANGE(0, 1), .max_open = true,
     BY_DEFAULT(0.999), .description = "decay of the squared gradient's running mean"},
    {"/optimizer/epsilon", REINFORCE, JOB_NUMBER, AT(optimizer.epsilon), RANGE(0, 1), .min_open = true,
     BY_DEFAULT(1e-8), .description = "added to the root of that mean"},
    {"/optimizer/momentum", SERVER, JOB_NUMBER, AT(optimizer.momentum), RANGE(0, 1), .max_open = true,
     BY_DEFAULT(0.9), .description = "how much of the last step goes into the next"},
    {"/optimizer/schedule", SERVER, JOB_ENUM, AT(optimizer.schedule), .names = schedule_names,
     BY_DEFAULT(JOB_SCHEDULE_CONSTANT),
     .description = "of the learning rate; linear: it falls evenly, to nothing behind the last update"},
    {"/optimizer/momentum", PARALLEL, JOB_NUMBER, AT(optimizer.momentum), RANGE(0, 1), .max_open = true,
     BY_DEFAULT(0), .description = "how much of the last step goes into the next"},
    {"/optimizer/schedule", PARALLEL, JOB_ENUM, AT(optimizer.schedule), .names = parallel_schedule_names,
     BY_DEFAULT(JOB_SCHEDULE_CONSTANT),
     .description =
         "of the learning rate; plateau: it is multiplied by decay whenever an evaluation finds the "
         "held-out loss no lower than the lowest so far"},
    {"/optimizer/decay", PARALLEL, JOB_NUMBER, AT(sequence.decay), RANGE(0, 1), .min_open = true,
     .max_open = true, BY_DEFAULT(0.25), .description = "binds the schedule plateau only"},
    {"/optimizer/max_norm", PARALLEL, JOB_NUMBER, AT(sequence.max_norm), RANGE(0, 1e9), .min_open = true,
     NULLABLE(sequence.has_max_norm), .null_by_default = true,
     .description = "the norm of the gradient, over all parts, to which a larger one is cut; null: none"},

    {"/running_reward", REINFORCE, JOB_OBJECT,
     .description = "the smoothed reward: weight * new + (1 - weight) * old"},
    {"/running_reward/of", REINFORCE, JOB_ENUM, AT(running_reward.of), .names = of_names,
     BY_DEFAULT(JOB_OF_MEAN),
     .description = "what of the environments' rewards is new: their smallest or their mean"},
    {"/running_reward/weight", REINFORCE, JOB_NUMBER, AT(running_reward.weight), RANGE(0, 1),
     .min_open = true, BY_DEFAULT(0.5), .description = "weight of the new value"},

    {"/data", SERVER, JOB_OBJECT, .schema_rule = data_rule, .description = "the images and their labels"},
    {"/data/kind", SERVER, JOB_ENUM, AT(data.kind), .names = data_names, BY_DEFAULT(JOB_DATA_SYNTHETIC),
     .description = "synthetic: random numbers, no files; idx: the files of the MNIST family, plain or .gz; "
                    "cifar: CIFAR-10 or CIFAR-100, the binary version; folder: train/CLASS and test/CLASS "
                    "with JPEG and PNG files"},
    {"/data/path", SERVER, JOB_PATH, AT(data.path), RANGE(0, JOB_PATH_BYTES - 1),
     .description = "the folder with the files; all kinds but synthetic need it"},
    {"/data/size", SERVER, JOB_INTEGER, AT(data.size), RANGE(1, 4096), BY_DEFAULT(64),
     .description = "height and width of the images that the model sees"},
    {"/data/fit", SERVER, JOB_ENUM, AT(data.fit), .names = fit_names, BY_DEFAULT(JOB_FIT_RESIZE),
     .description = "how an image of another size gets it; pad: zeros around it"},
    {"/data/channels", SERVER, JOB_INTEGER, AT(data.channels), RANGE(1, 3), .bounds_only = true,
     BY_DEFAULT(3),
     .description = "of the images that the model sees: gray ones are spread over 3, colored ones made gray"},
    {"/data/mean", SERVER, JOB_CHANNELS, AT(data.mean), RANGE(0, 1), BY_DEFAULT(0),
     .description = "taken from pixels in [0, 1]: one for all channels, or one for each of 3"},
    {"/data/std", SERVER, JOB_CHANNELS, AT(data.std), RANGE(1e-6, 1), BY_DEFAULT(1),
     .description = "what the difference is divided by, likewise"},
    {"/data/crop", SERVER, JOB_INTEGER, AT(data.crop), RANGE(0, 64), BY_DEFAULT(0),
     .description = "in training, pixels of zeros around an image before a random part of it is cut out"},
    {"/data/flip", SERVER, JOB_BOOLEAN, AT(data.flip), BY_DEFAULT(0),
     .description = "in training, mirror every other image, at random"},
    {"/data/limit", SERVER, JOB_INTEGER, AT(data.limit), RANGE(1, 1e9), NULLABLE(data.has_limit),
     .null_by_default = true, .description = "so many training samples only, the first of the files"},

    {"/data", PARALLEL, JOB_OBJECT, .schema_rule = parallel_data_rule, .description = "the tokens"},
    {"/data/kind", PARALLEL, JOB_ENUM, AT(data.kind), .names = parallel_data_names,
     BY_DEFAULT(JOB_DATA_SYNTHETIC),
     .description = "synthetic: random tokens, no file; text: the words of a file, each to be foretold from "
                    "those before it"},
    {"/data/path", PARALLEL, JOB_PATH, AT(data.path), RANGE(0, JOB_PATH_BYTES - 1),
     .description = "the text, a file of UTF-8; from where the daemon was started, unless it begins with /"},
    {"/data/steps", PARALLEL, JOB_INTEGER, AT(sequence.steps), RANGE(1, 65536), BY_DEFAULT(5),
     .description = "tokens of a column in one update, through which the gradient goes back"},
    {"/data/updates", PARALLEL, JOB_INTEGER, AT(sequence.updates), RANGE(1, 1e9), BY_DEFAULT(5),
     .description = "of synthetic data: updates in an epoch"},
    {"/data/minimum_count", PARALLEL, JOB_INTEGER, AT(sequence.minimum_count), RANGE(1, 1e9), BY_DEFAULT(1),
     .description = "of a text: a word that is rarer in its training part is <unk>"},
    {"/data/held_out", PARALLEL, JOB_NUMBER, AT(sequence.held_out), RANGE(0, 1), .max_open = true,
     BY_DEFAULT(0.1), .description = "of a text: the part of its lines, at the end, that is held out"},

    {"/evaluation", SERVER, JOB_OBJECT, .description = "loss and accuracy on the held-out data"},
    {"/evaluation/every", SERVER, JOB_INTEGER, AT(evaluation.every), RANGE(1, 1e6),
     NULLABLE(evaluation.has_every), BY_DEFAULT(1),
     .description =
         "epochs from one to the next; null: none. Synthetic data has none held out, nor has a folder "
         "without test"},
    {"/evaluation/batch", SERVER, JOB_INTEGER, AT(evaluation.batch), RANGE(1, 65536), BY_DEFAULT(100),
     .description = "samples in a forward"},

    {"/evaluation", PARALLEL, JOB_OBJECT, .description = "loss and perplexity on the held-out text"},
    {"/evaluation/every", PARALLEL, JOB_INTEGER, AT(evaluation.every), RANGE(1, 1e6),
     NULLABLE(evaluation.has_every), BY_DEFAULT(1),
     .description = "epochs from one to the next; null: none. Synthetic data has none held out"},
    {"/evaluation/batch", PARALLEL, JOB_INTEGER, AT(evaluation.batch), RANGE(1, 65536), BY_DEFAULT(10),
     .description = "columns into which the held-out text is cut"},

    {"/stop", REINFORCE, JOB_OBJECT, .schema_rule = STOP_RULE("episodes", "running_reward", "number"),
     .description = "when the job ends: at the first limit that is reached; one of them must be set"},
    {"/stop/episodes", REINFORCE, JOB_INTEGER, AT(stop.episodes), RANGE(1, 1e9), NULLABLE(stop.has_episodes),
     BY_DEFAULT(10), .description = "after so many episodes"},
    {"/stop/running_reward", REINFORCE, JOB_NUMBER, AT(stop.running_reward), RANGE(-DBL_MAX, DBL_MAX),
     NULLABLE(stop.has_running_reward), .null_by_default = true,
     .description = "when the running reward is above it"},
    {"/stop", SERVER, JOB_OBJECT, .schema_rule = STOP_RULE("updates", "epochs", "integer"),
     .description = "when the job ends: at the first limit that is reached; one of them must be set"},
    {"/stop/updates", SERVER, JOB_INTEGER, AT(stop.updates), RANGE(1, 1e9), NULLABLE(stop.has_updates),
     BY_DEFAULT(6), .description = "after so many updates; without this key, null where epochs is set"},
    {"/stop/epochs", SERVER, JOB_INTEGER, AT(stop.epochs), RANGE(1, 1e6), NULLABLE(stop.has_epochs),
     .null_by_default = true,
     .description = "after so many times through the training data, of which synthetic data has no end"},
    {"/stop", PARALLEL, JOB_OBJECT, .schema_rule = STOP_RULE("epochs", "updates", "integer"),
     .description = "when the job ends: at the first limit that is reached; one of them must be set"},
    {"/stop/updates", PARALLEL, JOB_INTEGER, AT(stop.updates), RANGE(1, 1e9), NULLABLE(stop.has_updates),
     .null_by_default = true, .description = "after so many updates"},
    {"/stop/epochs", PARALLEL, JOB_INTEGER, AT(stop.epochs), RANGE(1, 1e6), NULLABLE(stop.has_epochs),
     BY_DEFAULT(10),
     .description = "after so many times through the training data; without this key, null where updates is "
                    "set"},

    {"/log", ANY, JOB_OBJECT, .description = "what is written"},
    {"/log/every", ANY, JOB_INTEGER, AT(log.every), RANGE(1, 1e6), BY_DEFAULT(1),
     .description =
         "episodes or updates from line to line of episodes.log; episodes.jsonl has every one, but "
         "of a model-parallel job the same as episodes.log, each with the mean loss since the last"},

    {"/checkpoint", TRAINERS, JOB_OBJECT, .description = "what a run can be resumed from"},
    {"/checkpoint/every", TRAINERS, JOB_INTEGER, AT(checkpoint.every), RANGE(1, 1e9),
     NULLABLE(checkpoint.has_every), BY_DEFAULT(100),
     .description = "updates from one to the next; the last update makes one in any case"},
    {"/checkpoint/every_s", TRAINERS, JOB_NUMBER, AT(checkpoint.every_s), RANGE(0, 1e6), .min_open = true,
     NULLABLE(checkpoint.has_every_s), .null_by_default = true,
     .description = "seconds from one to the next, besides"},
    {"/checkpoint/keep", TRAINERS, JOB_INTEGER, AT(checkpoint.keep), RANGE(1, 1000), BY_DEFAULT(3),
     .description = "so many of the newest stay"},

    {"/supervise", ANY, JOB_OBJECT, .description = "how the worker processes are watched"},
    {"/supervise/hang_s", ANY, JOB_NUMBER, AT(supervise.hang_s), RANGE(1, 3600), BY_DEFAULT(10),
     .description = "seconds without a sign of life after which a worker is killed"},
};
const size_t job_key_count = sizeof job_keys / sizeof job_keys[0];
_Static_assert(sizeof job_keys / sizeof job_keys[0] <= JOB_KEYS_MAX, "JOB_KEYS_MAX bounds arrays elsewhere");
