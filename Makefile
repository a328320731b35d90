# Builds coalesced. `make` builds the daemon, `make check` runs the tests, `make help` lists all targets.
#
# SAN=address|undefined|thread builds and tests under that sanitizer, in a build folder of its own. SAN=address includes
# undefined; SAN=undefined alone is faster.
#
# A new source file needs no line here. Every .c file of kernels/, worker/ and daemon/ is built. In test/, at any depth,
# test_*.c is a test program, test_*.sh a shell test, and any other .c file a helper that tests link; bench/bench_*.c is
# a benchmark, fuzz/fuzz_*.c a fuzz target, preload/*.c a library that a test loads.

VERSION := 0.1.0
PREFIX ?= /usr/local
CC ?= gcc
CLANG ?= clang
SAN ?=
comma := ,
BUILD := build/$(if $(SAN),$(SAN),release)
SANITIZERS := $(if $(filter address,$(SAN)),address$(comma)undefined,$(SAN))

objects = $(patsubst %.c,$(BUILD)/%.o,$(1))

CPPFLAGS := -I. -isystem $(BUILD)/proto -D_GNU_SOURCE -DCOALESCED_VERSION='"$(VERSION)"' $(if $(SAN),-DARENA_POISON=1)
WARNINGS := -Wall -Wextra -Werror -Wshadow -Wvla -Wundef -Wformat=2 -Wstrict-prototypes -Wmissing-prototypes \
            -Wpointer-arith -Wcast-qual -Wwrite-strings
# -O1 shortens a sanitizer's build by a third, and the tests take no longer. The thread sanitizer looks at each access to
# memory, of which vector code has fewer: its *_lanes.c keep -O3. What gcc says of truncated formats is wrong at -O1, where
# it does not know the ranges of numbers.
OPTIMIZE := $(if $(SAN),-O1 -Wno-format-truncation,-O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
LANE_OPTIMIZE := $(if $(filter address undefined,$(SAN)),-O1,-O3)
CFLAGS := -std=gnu17 -fvect-cost-model=dynamic $(if $(SAN),-g1,-g) -ffp-contract=off -fno-omit-frame-pointer -fPIC -fno-semantic-interposition \
          $(WARNINGS) $(OPTIMIZE) $(if $(SAN),-fsanitize=$(SANITIZERS) -fno-sanitize-recover=all)
LDFLAGS := -Wl,-z,relro,-z,now $(if $(SAN),-fsanitize=$(SANITIZERS))
LDLIBS := -lzmq -lcjson -lsodium -ljpeg -lpng -lgif -lz -lprotobuf-c -lm -lpthread -ldl

# Every *_lanes.c is compiled once per instruction set; the program chooses one at start. kernels/onednn/ and
# kernels/cuda/ become plug-ins, so that a process loads a math library only when its job needs one.
# test/baseline/ holds what tests and benchmarks compare with; only the programs named below link oneDNN.
ISAS := baseline avx2 avx512
ISA_baseline :=
ISA_avx2 := -mavx2 -mfma
ISA_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mprefer-vector-width=512
LANES := $(wildcard kernels/*/*_lanes.c worker/*/*_lanes.c test/kernels/lanes/*_lanes.c)
ONEDNN := $(wildcard kernels/onednn/*.c)
BASELINE := $(wildcard test/baseline/*.c)
CUDA := $(wildcard kernels/cuda/*.cu)
KERNELS := $(filter-out $(LANES) $(ONEDNN),$(wildcard kernels/*.c kernels/*/*.c))
WORKER := $(filter-out $(LANES),$(wildcard worker/*.c worker/*/*.c))
MUJOCO := $(wildcard worker/environment/mujoco/*.c)
PROTO := $(wildcard worker/model/*.proto daemon/*/*.proto)
PROTO_HEADERS := $(patsubst %.proto,$(BUILD)/proto/%.pb-c.h,$(notdir $(PROTO)))
DAEMON := $(wildcard daemon/*/*.c)
# The stand-in for a GPU, test/gpu/, needs the headers of CUDA and cuDNN, and no GPU.
NVCC ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(lastword $(NVCC)) 2>/dev/null)))
CUDNN_DIR ?= $(patsubst %/include/cudnn.h,%,$(firstword $(wildcard $(CUDA_HOME)/include/cudnn.h /usr/include/cudnn.h)))
CUDA_INCLUDE ?= $(patsubst %/cuda_runtime_api.h,%,$(firstword $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h \
                                                                          /usr/include/cuda_runtime_api.h)))
STAND_IN := $(if $(and $(CUDA_INCLUDE),$(wildcard $(CUDNN_DIR)/include/cudnn.h)),$(filter-out test/gpu/test_%,$(wildcard test/gpu/*.c)))
TEST_SOURCES := $(sort $(shell find test -name '*.c' $(if $(STAND_IN),,-not -path 'test/gpu/*')))
TEST_PROGRAMS := $(foreach source,$(TEST_SOURCES),$(if $(filter test_%,$(notdir $(source))),$(source)))
TEST_HELPERS := $(filter-out $(TEST_PROGRAMS) $(BASELINE) $(LANES) test/bench/% test/fuzz/% test/gpu/% test/preload/%, \
                             $(TEST_SOURCES))
TESTS := $(addprefix $(BUILD)/test/,$(basename $(notdir $(TEST_PROGRAMS))))
# A sanitizer's build leaves out what other programs have shown it already: tests of scripts and documents; of workers
# in Python; long trainings and jobs on the stand-in for a GPU, whose steps the unit tests take, too; planted defects
# and coverage. The thread sanitizer, besides, has nothing in commands and supervisors, which have one thread, nor in
# the programs of five rooms, but for those named here. Jobs of each kind that end, die and resume under it are in
# test_restart and test_*_resume.
UNSANITIZED := test_arrows test_documents test_fail_call test_scripts test_unit test_sweep test_plot test_gymnasium \
               test_python_evaluations test_python_trainer test_python_data test_off_policy_python test_ppo \
               test_ppo_images test_reproducible test_hosts_network test_hosts_ssh test_power_failure test_runs_logs \
               test_install test_begin_anew test_best_runs test_planted test_coverage test_terminal test_profile_jobs \
               test_memory_files test_stand_in
UNTHREADED := test_continue test_cuda_faults test_disk_faults test_finished test_hosts test_http test_links test_list \
              test_log_places test_lost_job test_model_parallel test_off_policy_images \
              test_parameter_server test_play test_python_spaces test_renamed_run test_rpc_floods test_rpc_proxy \
              test_stand_in_operations test_status test_tensorboard test_try test_worlds \
              $(filter-out test_backend% test_classifier test_dense test_denormals test_pmi test_policy \
                           test_policy_improve test_policy_network test_profile test_restart test_sgd_round test_team, \
                  $(basename $(notdir $(filter test/kernels/% test/worker/job/% test/worker/environment/% test/worker/model/% \
                                               test/daemon/%,$(TEST_PROGRAMS)))))
# WITHOUT names further tests that are not wanted, such as test_deb.
LEFT_OUT := $(WITHOUT) $(if $(SAN),$(UNSANITIZED)) $(if $(filter thread,$(SAN)),$(UNTHREADED))
TESTS := $(filter-out $(addprefix $(BUILD)/test/,$(LEFT_OUT)),$(TESTS))
SHELL_TESTS := $(filter-out $(patsubst %,\%/%.sh,$(LEFT_OUT)),$(sort $(shell find test -name 'test_*.sh')))
PRELOADS := $(patsubst %.c,$(BUILD)/%.so,$(wildcard test/preload/*.c))
BENCH_PROGRAMS := $(wildcard test/bench/bench_*.c)
BENCHES := $(addprefix $(BUILD)/test/,$(basename $(notdir $(BENCH_PROGRAMS))))

LANE_OBJECTS := $(foreach isa,$(ISAS),$(patsubst %.c,$(BUILD)/%.$(isa).o,$(LANES)))
KERNEL_LANES := $(filter $(BUILD)/kernels/%,$(LANE_OBJECTS))
WORKER_LANES := $(filter $(BUILD)/worker/%,$(LANE_OBJECTS))
TEST_LANES := $(filter $(BUILD)/test/%,$(LANE_OBJECTS))
# The thread sanitizer does not see how OpenMP orders its threads, so its build runs our loops on one thread.
OPENMP := $(if $(filter thread,$(SAN)),-Wno-unknown-pragmas,-fopenmp)
# The GPU plug-in needs nvcc and cuDNN. CUDNN_DIR is the folder with cuDNN's include/ and lib/ when it is neither the
# toolkit's nor /usr, such as a Python package's nvidia/cudnn. Sanitizers do not see code on a GPU, so their builds have
# no GPU plug-in.
CUDNN_SO := $(if $(CUDNN_DIR),$(firstword $(wildcard $(addprefix $(CUDNN_DIR)/,$(addsuffix /libcudnn.so.9,lib lib64 lib/x86_64-linux-gnu)))))
CUDA_SO := $(if $(and $(NVCC),$(CUDNN_SO),$(if $(SAN),,yes)),$(BUILD)/libcoalesced-cuda.so)
CUDA_ABSENT = $(if $(SAN),sanitizers do not see code on a GPU,$(if $(NVCC),no cuDNN 9 (CUDNN_DIR),no CUDA toolkit (nvcc)))
# The environments of MuJoCo need its library, and Gymnasium's models of them: the Python packages that scripts/deps mujoco
# installs, or MUJOCO_DIR, a folder with include/mujoco/ and libmujoco.so.*, and MUJOCO_MODELS, a folder with the XML files.
MUJOCO_PACKAGES := $(firstword $(wildcard build/mujoco-venv/lib/python3*/site-packages))
MUJOCO_DIR ?= $(patsubst %/include/mujoco/mujoco.h,%,$(wildcard $(MUJOCO_PACKAGES)/mujoco/include/mujoco/mujoco.h))
MUJOCO_MODELS ?= $(wildcard $(MUJOCO_PACKAGES)/gymnasium/envs/mujoco/assets)
MUJOCO_LIBRARY := $(if $(MUJOCO_DIR),$(firstword $(wildcard $(MUJOCO_DIR)/libmujoco.so.* $(MUJOCO_DIR)/lib/libmujoco.so.*)))
MUJOCO_SO := $(if $(and $(MUJOCO_LIBRARY),$(MUJOCO_MODELS)),$(BUILD)/libcoalesced-mujoco.so)
HTTP := $(wildcard daemon/watch/http/*.c)
PLUGINS := $(if $(ONEDNN),$(BUILD)/libcoalesced-onednn.so) $(BUILD)/libcoalesced-http.so $(CUDA_SO) $(MUJOCO_SO)
PYTHON_WORKERS := $(wildcard worker/python/*.py)
# The commands that are programs of their own, and their module.
COMMANDS := scripts/coalesced-forward scripts/coalesced-plot scripts/coalesced-sweep scripts/coalesced_curves.py
ARCHIVES := $(BUILD)/libdaemon.a $(BUILD)/libworker.a $(BUILD)/libkernels.a

.PHONY: all protos tests check bench benches bench-kernels fuzz lint format install uninstall deb wheel clean help documents print-cudnn print-gpu-includes
.DELETE_ON_ERROR:
.SECONDARY:

all: $(BUILD)/coalesced $(PLUGINS)
ifeq ($(CUDA_SO),)
	@echo 'the GPU plug-in is not built: $(CUDA_ABSENT)'
endif

help:
	@echo 'make               the daemon, $(BUILD)/coalesced, and its plug-ins'
	@echo 'make check         every test; SAN=address|undefined|thread: under that sanitizer (address includes undefined)'
	@echo 'make bench         benchmarks beside their baselines (scripts/bench)'
	@echo 'make benches       builds the benchmark programs'
	@echo 'make bench-kernels the rate of every operation at the models'\'' shapes, and of the policy'
	@echo 'make fuzz          every fuzz target for FUZZ_SECONDS=300'
	@echo 'make lint          clang-format, clang-tidy, cppcheck, shellcheck, scripts/arrows'
	@echo 'make format        clang-format, in place'
	@echo 'make documents     config/job.schema.json, coalesced-job.5 and JOBS.md from the table of keys (mandoc)'
	@echo 'make clean         removes build/'
	@echo 'make install       PREFIX=$(PREFIX) DESTDIR='
	@echo 'make deb           the Debian package, build/coalesced_$(VERSION)_ARCHITECTURE.deb'
	@echo 'make wheel         the Python package, build/coalesced-$(VERSION)-….whl, which pip installs'

$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

# protobuf-c's compiler makes NAME.pb-c.c and NAME.pb-c.h of each NAME.proto.
vpath %.proto $(sort $(dir $(PROTO)))
$(BUILD)/proto/%.pb-c.h: %.proto
	@mkdir -p $(@D)
	protoc-c --proto_path=$(<D) --c_out=$(@D) $(<F)
$(BUILD)/proto/%.pb-c.o: $(BUILD)/proto/%.pb-c.h
	$(CC) $(CPPFLAGS) $(CFLAGS) -w -c -o $@ $(@:.o=.c)
$(call objects,worker/model/onnx.c): $(BUILD)/proto/onnx.pb-c.h
$(call objects,daemon/log/tensorboard.c): $(BUILD)/proto/events.pb-c.h

# gcc 12 keeps the address sanitizer's copies of stack frames at less than a vector's alignment (its bug 110027).
LANE_FLAGS := $(LANE_OPTIMIZE) $(if $(filter address,$(SAN)),--param asan-use-after-return=0)
# Less work for the compiler: undefined behaviour is the source's, so one instruction set shows it. No processor of today
# takes `baseline` but in tests that ask for it, and -g0 halves gcc's time there.
LANE_FLAGS_baseline := $(if $(filter address,$(SAN)),-fno-sanitize=undefined)$(if $(filter thread,$(SAN)),-O1) -g0
LANE_FLAGS_avx512 := $(if $(filter address,$(SAN)),-fno-sanitize=undefined)
define lane_rule
$(BUILD)/%_lanes.$(1).o: %_lanes.c Makefile
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $$(CFLAGS) $$(LANE_FLAGS) $$(LANE_FLAGS_$(1)) $$(ISA_$(1)) -DLANES_ISA=$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach isa,$(ISAS),$(eval $(call lane_rule,$(isa))))

# Which operations raise the flags of IEEE 754 is nobody's concern here. No result changes, and gcc may compute both
# sides of a condition, which it needs to make vector code of one.
$(WORKER_LANES): CFLAGS += -fno-trapping-math

$(BUILD)/libkernels.a: $(call objects,$(KERNELS)) $(KERNEL_LANES)
$(BUILD)/libworker.a: $(call objects,$(WORKER)) $(WORKER_LANES) $(BUILD)/proto/onnx.pb-c.o
$(BUILD)/libdaemon.a: $(call objects,$(DAEMON)) $(BUILD)/proto/events.pb-c.o
$(BUILD)/libbaseline.a: $(call objects,$(BASELINE))
$(BUILD)/libtest.a: $(call objects,$(TEST_HELPERS)) $(TEST_LANES)
# The oracle has no threads, and its loops are most of what the thread sanitizer would watch.
ifeq ($(SAN),thread)
$(call objects,$(wildcard test/oracle/*.c)): CFLAGS += -fno-sanitize=thread
endif
# Nobody waits for a test program's own code, but everybody for its compiler.
$(call objects,$(TEST_PROGRAMS)): CFLAGS += -O0 -g1 -U_FORTIFY_SOURCE
$(call objects,$(ONEDNN)): CFLAGS += -fvisibility=hidden $(OPENMP)
$(call objects,$(BASELINE)): CFLAGS += $(OPENMP)
$(BUILD)/%.a:
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/coalesced: $(BUILD)/daemon/main.o $(ARCHIVES)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# A plug-in contains the objects of libkernels.a that it uses, and exports one symbol.
$(BUILD)/libcoalesced-onednn.so: $(call objects,$(ONEDNN)) $(BUILD)/libkernels.a
	$(CC) $(LDFLAGS) $(OPENMP) -shared -Wl,--exclude-libs,ALL -Wl,--no-undefined -o $@ $^ -ldnnl -lm -lpthread

# The HTTP server of /metrics/listen: the daemon's own objects hold what the plug-in has of them.
$(call objects,$(HTTP)): CFLAGS += -fvisibility=hidden
# Its page draws curves with dygraphs, of Debian's libjs-dygraphs.
DYGRAPHS_DIR ?= /usr/share/javascript/dygraphs
DYGRAPHS := $(addprefix $(DYGRAPHS_DIR)/,dygraph.min.js dygraph.min.css)
$(DYGRAPHS):
	@echo '$@ is missing: install libjs-dygraphs (scripts/deps), or say its folder with DYGRAPHS_DIR=' >&2; exit 1
$(BUILD)/daemon/watch/http/http.o: CFLAGS += -Wa,-I$(DYGRAPHS_DIR)
$(BUILD)/daemon/watch/http/http.o: $(wildcard daemon/watch/http/page/*) $(DYGRAPHS)
$(BUILD)/libcoalesced-http.so: $(call objects,$(HTTP)) $(BUILD)/libkernels.a
	$(CC) $(LDFLAGS) -shared -Wl,--exclude-libs,ALL -Wl,--no-undefined -o $@ $^ -lmicrohttpd -lsodium

# Native code for compute capability 8.0 (A100) and 9.0 (H100, H200), and PTX of 9.0, which the driver translates for
# later GPUs. -fmad=false and -ftz=true: draws, Adam and sums promise the bits of the CPU, which contracts nothing and
# flushes denormals; cuDNN does most of the arithmetic. CUDA's runtime is linked statically, cuDNN is not.
NVCC_WARNINGS := -Werror=all-warnings -Xcompiler=-Wall,-Wextra
NVCCFLAGS := -std=c++17 -O2 -fmad=false -ftz=true --extended-lambda $(NVCC_WARNINGS) -Xcompiler=-fPIC,-fvisibility=hidden \
             -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90,compute_90]
# CUDA's own headers take most of nvcc's time: nvcc reads them once, for one file that includes all the others. No two
# files may give a static function one name.
$(BUILD)/kernels/cuda.cu: $(CUDA) Makefile
	@mkdir -p $(@D)
	@printf '#include "%s"\n' $(CUDA) >$@
$(BUILD)/kernels/cuda.o: $(BUILD)/kernels/cuda.cu $(CUDA) Makefile
	$(filter ccache,$(CC)) $(NVCC) $(CPPFLAGS) -I$(CUDNN_DIR)/include $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

$(BUILD)/libcoalesced-cuda.so: $(BUILD)/kernels/cuda.o $(BUILD)/libkernels.a
	$(NVCC) -shared -cudart=static -Xlinker=--exclude-libs=ALL -Xlinker=--no-undefined \
	    -Xlinker=-rpath=$(abspath $(dir $(CUDNN_SO))) -o $@ $^ -L$(dir $(CUDNN_SO)) -l:libcudnn.so.9

# The GPU plug-in of the stand-in: the same .cu files, compiled as C++, with test/gpu/ for CUDA and cuDNN. Without a
# sanitizer gcc calls test/gpu/gpu_race.c at each access to memory. COVERAGE=1 builds it for gcov, in a folder of its own.
GPU := $(BUILD)/gpu$(if $(COVERAGE),-coverage)
GPU_SO := $(if $(and $(STAND_IN),$(wildcard test/gpu/cudnn_*.c)),$(GPU)/libcoalesced-cuda.so)
GPU_INCLUDES := $(if $(STAND_IN),-isystem $(CUDNN_DIR)/include -isystem $(CUDA_INCLUDE))
GPU_RACES := -fsanitize=thread --param=tsan-instrument-func-entry-exit=0
GPU_CXXFLAGS := -x c++ -std=gnu++17 -Itest/gpu/include $(GPU_INCLUDES) -g -ffp-contract=off -fno-omit-frame-pointer -fPIC \
                -fvisibility=hidden -fno-threadsafe-statics -Wall -Wextra -Werror $(OPTIMIZE) \
                $(if $(COVERAGE),--coverage -O0,$(if $(SAN),-fsanitize=$(SANITIZERS) -fno-sanitize-recover=all,$(GPU_RACES)))
$(GPU)/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(filter ccache,$(CC)) $(CXX) $(CPPFLAGS) $(GPU_CXXFLAGS) -MMD -MP -c -o $@ $<

$(call objects,$(STAND_IN) $(wildcard test/gpu/test_*.c)): CPPFLAGS += $(GPU_INCLUDES) $(if $(SAN),-DGPU_NO_RACES)
$(call objects,$(STAND_IN)): CFLAGS += -fvisibility=hidden
$(GPU)/libcoalesced-cuda.so: $(patsubst %.cu,$(GPU)/%.o,$(CUDA)) $(call objects,$(STAND_IN)) $(BUILD)/libtest.a $(BUILD)/libkernels.a
	$(CXX) $(LDFLAGS) $(if $(COVERAGE),--coverage) -shared -Wl,--exclude-libs,ALL -Wl,--no-undefined -o $@ $^ -lm -lpthread -ldl

$(call objects,$(MUJOCO)): CPPFLAGS += -isystem $(MUJOCO_DIR)/include
$(call objects,$(MUJOCO)): CFLAGS += -fvisibility=hidden
$(BUILD)/libcoalesced-mujoco.so: $(call objects,$(MUJOCO)) $(BUILD)/libkernels.a
	@mkdir -p $(@D)/mujoco-models
	cp $(MUJOCO_MODELS)/*.xml $(@D)/mujoco-models/
	$(CC) $(LDFLAGS) -shared -Wl,--exclude-libs,ALL -Wl,--no-undefined -Wl,-rpath,$(abspath $(dir $(MUJOCO_LIBRARY))) -o $@ $^ \
	    $(MUJOCO_LIBRARY) -lcjson -lm

# Prints the path of cuDNN, or an empty line, for scripts/gpu-check.
print-cudnn:
	@echo '$(CUDNN_SO)'

# Prints the options that find the headers of CUDA and cuDNN, or an empty line, for scripts/lint.
print-gpu-includes:
	@echo '$(GPU_INCLUDES)'

# A test program links its own object and, from the archives, the objects that it uses. All test programs lie in
# $(BUILD)/test/, wherever their sources lie. Only test_*_onednn and four benchmarks link oneDNN.
$(filter %_onednn,$(TESTS)) $(addprefix $(BUILD)/test/,bench_mlp bench_dense bench_models bench_kernels): \
    EXTRA_LIBS := $(BUILD)/libbaseline.a $(BUILD)/libkernels.a -ldnnl $(OPENMP)
# Tests of the stand-in link it, and their own kernels.
GPU_TESTS := $(addprefix $(BUILD)/test/,$(basename $(notdir $(filter test/gpu/%,$(TEST_PROGRAMS)))))
$(BUILD)/libgpu.a: $(call objects,$(STAND_IN)) $(patsubst %.cu,$(GPU)/%.o,$(wildcard test/gpu/*.cu))
$(GPU_TESTS): $(BUILD)/libgpu.a
$(BUILD)/test/test_cuda_faults: | $(GPU_SO)
$(GPU_TESTS): EXTRA_LIBS := $(BUILD)/libgpu.a $(BUILD)/libtest.a $(ARCHIVES) -lstdc++
define test_rule
$(BUILD)/test/$(basename $(notdir $(1))): $(call objects,$(1)) $(BUILD)/libtest.a $(BUILD)/libbaseline.a $(ARCHIVES)
	$$(CC) $$(LDFLAGS) -o $$@ $$< $(BUILD)/libtest.a $(ARCHIVES) $$(EXTRA_LIBS) \
	    -Wl,--push-state,--as-needed -lcheck -lsubunit $$(LDLIBS) -lrt -Wl,--pop-state
endef
$(foreach source,$(TEST_PROGRAMS) $(BENCH_PROGRAMS),$(eval $(call test_rule,$(source))))

# Libraries that tests preload or load; built without a sanitizer.
$(BUILD)/test/test_backend $(BUILD)/test/test_loader $(BUILD)/test/test_trainer: | $(PRELOADS)
$(BUILD)/test/test_streams: | $(BUILD)/libcoalesced-http.so
$(BUILD)/test/preload/%.so: test/preload/%.c kernels/backend.h kernels/op.h worker/environment/environment.h Makefile
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -std=gnu17 -O2 -g $(WARNINGS) -fno-builtin -fPIC -shared -o $@ $<

# Everything that `make check` runs.
tests: $(BUILD)/coalesced $(PLUGINS) $(GPU_SO) $(TESTS) $(PRELOADS)
ifeq ($(STAND_IN),)
	@echo 'test/gpu/ is not built: no headers of CUDA (CUDA_INCLUDE) and of cuDNN 9 (CUDNN_DIR)'
endif

check: tests
	@BUILD=$(BUILD) SAN=$(SAN) scripts/check $(sort $(TESTS)) $(SHELL_TESTS)

benches: $(PLUGINS) $(BENCHES)

bench: all benches
	@scripts/bench

bench-kernels: $(PLUGINS) $(BUILD)/test/bench_kernels $(BUILD)/test/bench_mlp
	@$(BUILD)/test/bench_kernels
	@$(BUILD)/test/bench_mlp policy

documents: $(BUILD)/coalesced
	$(BUILD)/coalesced schema > config/job.schema.json
	$(BUILD)/coalesced schema man > config/coalesced-job.5
	mandoc -I os=coalesced -T markdown config/coalesced-job.5 > config/JOBS.md

# ---- fuzzing: one program of clang's libFuzzer per target ----
FUZZ_SECONDS ?= 300
FUZZERS := $(patsubst test/fuzz/%.c,build/fuzz/%,$(wildcard test/fuzz/fuzz_*.c))
FUZZ_SOURCES := $(filter-out kernels/onednn/% kernels/policy/% kernels/lanes/normal.c,$(KERNELS)) \
                $(wildcard worker/net/*.c worker/reference/*.c worker/autograd/*.c worker/job/*.c) \
                $(filter-out $(LANES),$(wildcard worker/environment/*.c)) \
                $(filter-out worker/data/loader.c,$(wildcard worker/data/*.c)) \
                worker/checkpoint/checkpoint_manifest.c worker/python/python_child.c

# The oracle computes where a target needs a backend.
build/fuzz/fuzz_dist build/fuzz/fuzz_answers: FUZZ_BACKEND := $(wildcard test/oracle/ref*.c)
# They look into struct rpc and struct sessions, and undo a death in struct dist, so they include the files that have them.
FUZZ_RPC := worker/net/rpc.c worker/net/rpc_sessions.c
build/fuzz/fuzz_rref build/fuzz/fuzz_hello: FUZZ_INCLUDED := $(FUZZ_RPC)
build/fuzz/fuzz_dist build/fuzz/fuzz_answers: FUZZ_INCLUDED := $(FUZZ_RPC) worker/autograd/dist_context.c
# Its peers stand where sockets are.
build/fuzz/fuzz_answers: FUZZ_LINK := $(addprefix -Wl$(comma)--wrap=endpoint_,\
    prepare send receive move release wait message_host)
build/fuzz/fuzz_hello: FUZZ_LINK := $(addprefix -Wl$(comma)--wrap=endpoint_,connect send receive wait)
build/fuzz/%: test/fuzz/%.c $(FUZZ_SOURCES) $(LANE_OBJECTS) $(wildcard test/fuzz/*.h) Makefile
	@mkdir -p $(@D)
	$(CLANG) $(CPPFLAGS) -std=gnu17 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
	    -o $@ $< $(filter-out $(FUZZ_INCLUDED),$(FUZZ_SOURCES)) $(LANE_OBJECTS) $(FUZZ_BACKEND) $(FUZZ_LINK) $(LDLIBS)

fuzz: $(FUZZERS)
	@for f in $(FUZZERS); do \
	    name=$$(basename $$f); mkdir -p build/corpus/$$name; \
	    echo "== $$name, $(FUZZ_SECONDS) s"; \
	    $$f -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 -artifact_prefix=build/ \
	        build/corpus/$$name $$(ls -d test/fuzz/seeds/$$name 2>/dev/null) || exit 1; \
	done

# ---- form ----
# What clang-tidy must find to read the files that include it.
protos: $(PROTO_HEADERS)

SOURCES = $(shell find kernels worker daemon test -path test/bench/peer -prune -o \( -name '*.[ch]' -o -name '*.cu' \) -print | sort)
lint:
	@scripts/lint $(SOURCES)

format:
	clang-format -i $(SOURCES)

install: $(BUILD)/coalesced $(PLUGINS) scripts/new-environment $(PYTHON_WORKERS) $(COMMANDS)
	install -D -m 755 $(BUILD)/coalesced $(DESTDIR)$(PREFIX)/bin/coalesced
	install -d $(DESTDIR)$(PREFIX)/lib/coalesced
	install -m 755 $(PLUGINS) $(DESTDIR)$(PREFIX)/lib/coalesced/
	$(if $(MUJOCO_SO),install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/coalesced/mujoco-models $(MUJOCO_MODELS)/*.xml)
	install -d $(DESTDIR)$(PREFIX)/share/coalesced $(DESTDIR)$(PREFIX)/lib/systemd/system
	install -m 644 config/*.json config/alerts.yml $(DESTDIR)$(PREFIX)/share/coalesced/
	sed 's|@PREFIX@|$(PREFIX)|g' scripts/package/coalesced@.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/coalesced@.service
	chmod 644 $(DESTDIR)$(PREFIX)/lib/systemd/system/coalesced@.service
	install -D -m 644 worker/environment/environment.h $(DESTDIR)$(PREFIX)/include/coalesced/environment.h
	install -D -m 755 scripts/new-environment $(DESTDIR)$(PREFIX)/bin/coalesced-new-environment
	install -m 755 $(PYTHON_WORKERS) $(COMMANDS) $(DESTDIR)$(PREFIX)/lib/coalesced/
	install -D -m 644 scripts/package/coalesced.1 $(DESTDIR)$(PREFIX)/share/man/man1/coalesced.1
	install -m 644 scripts/package/coalesced-new-environment.1 $(DESTDIR)$(PREFIX)/share/man/man1/coalesced-new-environment.1
	install -D -m 644 config/coalesced-job.5 $(DESTDIR)$(PREFIX)/share/man/man5/coalesced-job.5
	install -D -m 644 config/RUNS.md $(DESTDIR)$(PREFIX)/share/doc/coalesced/config/RUNS.md
	install -D -m 644 scripts/package/coalesced.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/coalesced

# What `make install` with the same PREFIX and DESTDIR has put there. Files of others stay, and so do their folders.
INSTALLED = bin/coalesced bin/coalesced-new-environment lib/systemd/system/coalesced@.service include/coalesced/environment.h \
	$(addprefix lib/coalesced/,$(notdir $(PYTHON_WORKERS) $(COMMANDS)) libcoalesced-*.so mujoco-models/*.xml) \
	$(addprefix share/coalesced/,$(notdir $(wildcard config/*.json config/alerts.yml))) \
	share/man/man1/coalesced.1 share/man/man1/coalesced-new-environment.1 share/man/man5/coalesced-job.5 \
	share/doc/coalesced/config/RUNS.md share/bash-completion/completions/coalesced
uninstall:
	cd "$(DESTDIR)$(PREFIX)/" && rm -f $(INSTALLED)
	cd "$(DESTDIR)$(PREFIX)/" && for folder in lib/coalesced/mujoco-models lib/coalesced share/coalesced include/coalesced \
		share/doc/coalesced/config share/doc/coalesced; do \
		[ ! -d $$folder ] || rmdir --ignore-fail-on-non-empty $$folder; done

deb: $(BUILD)/coalesced $(PLUGINS)
	@scripts/package/deb $(VERSION) build

wheel: $(BUILD)/coalesced $(PLUGINS)
	@scripts/package/wheel/build $(VERSION) build

clean:
	rm -rf build

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
