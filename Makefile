# `make` lists the targets. Everything needed is set up on first use, in .venv.

PYTHON ?= python3
VENV := .venv
# `make grade PY=python3` uses an environment of your own (a cluster's, a notebook's) as it is.
PY ?= $(VENV)/bin/python
SUBMISSION ?= problems
P ?= $(p)
REPORT ?= yes
READY := $(if $(filter $(VENV)/bin/python,$(PY)),$(VENV)/.ready)
CPU_INDEX := https://download.pytorch.org/whl/cpu
need = command -v "$1" >/dev/null 2>&1 || { echo "make: got no $1, expected Python 3.11 or newer;" \
	"install one and say for example: make $2 PYTHON=python3.12" >&2; exit 4; }
# course
# As many test workers as cores, eight at the most: each has a torch of its own in memory.
WORKERS := $(shell n=$$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 1); [ $$n -gt 8 ] && n=8; echo $$n)
# `make check test` runs them once.
CHECKED := tests/test_set.py tests/test_set_cases.py tests/test_handouts.py tests/test_triton_page.py tests/test_mistakes.py
# end of course

.DEFAULT_GOAL := help
.PHONY: help setup grade watch race predict hint trace explain lint quiz case doctor submit
.PHONY: bench release test check sweep clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  P=p04,p05            grade these problems only"
	@echo "  QUICK=1              leave speed and memory out    X=1  stop at the first failure"
	@echo "  MAP=1                show the tiles that your kernels visit"
	@echo "  CHIPS=8.6,gfx942     compile for these GPUs too, or for all; never counts"
	@echo "  SUBMISSION=dir       grade another folder with pNN/<file>.py (default: problems)"
	@echo "  DEVICE=cpu           do not use the GPU      SEED=hex  repeat a run's inputs"
	@echo "  OFFICIAL=1           grade for credit, in a jail (needs bubblewrap)"
	@echo "  OUTPUT=file          the archive that submit writes (default: submission.zip)"
	@echo "  TO=place NAME=id     submit: hand it in to a shared folder or a git repository"
	@echo "  JSON=file            write the record        PY=python  skip .venv, use this Python"
	@echo "  REPORT=no            write no report.html    YES=1  setup: download GBs unasked"
# course
	@echo "  SHAPES=names         shapes to time: growth, or 1,64,8,8192,128,w=128,s=4"
	@echo "  PLOT=dir             draw plots              BENCH=...  more options of the benchmark"
# end of course
	@echo "  CASE=window:2        trace: a check, and which of its cases   PROGRAM=1,0,0  which"
	@echo "  ID=P06-WINDOW-SHIFTED  the cause to explain (none: list them all, or those of P=)"
	@echo "  TOPIC=softmax        quiz: one topic         LEVEL=hard  one level"
	@echo "  RESTART=1            quiz, hint, case: start over"

setup: $(READY) ## make .venv with everything that is needed (the other targets do it themselves)

$(VENV)/.ready: requirements.txt $(wildcard requirements*.lock) pyproject.toml
	@$(call need,$(PYTHON),setup)
	@"$(PYTHON)" -u grader/commands/setup_environment.py --folder $(VENV) --cpu-index $(CPU_INDEX) $(if $(YES),--yes)

grade: $(READY) ## grade your answers and print the score report
	@"$(PY)" -m grader grade --exit-zero --submission "$(SUBMISSION)" $(if $(P),--only "$(P)") \
	  $(if $(DEVICE),--device "$(DEVICE)") $(if $(SEED),--seed "$(SEED)") \
	  $(if $(JSON),--json "$(JSON)") $(if $(QUICK),--quick) $(if $(X),--exitfirst) \
	  $(if $(MAP),--map) $(if $(CHIPS),--chips "$(CHIPS)") $(if $(OFFICIAL),--official) $(if $(filter-out no,$(REPORT)),--report)

watch: $(READY) ## grade one problem again at each save: P=p04 (default: the first open one)
	@"$(PY)" -m grader watch --submission "$(SUBMISSION)" $(if $(P),--only "$(P)") \
	  $(if $(DEVICE),--device "$(DEVICE)") $(if $(filter-out no,$(REPORT)),--report)

race: $(READY) ## time your answer beside naive PyTorch and SDPA (needs a CUDA GPU): P=p04
	@"$(PY)" -m grader race --submission "$(SUBMISSION)" $(if $(P),--only "$(P)") || [ $$? -eq 1 ]

predict: $(READY) ## predict the time of your kernels on an A100, H100 and H200: P=p04; never counts
	@"$(PY)" -m grader predict --submission "$(SUBMISSION)" $(if $(P),--only "$(P)") || [ $$? -eq 1 ]

hint: $(READY) ## give the next hint of the first step that is not solved; never counted against you
	@"$(PY)" -m grader hint --submission "$(SUBMISSION)" $(if $(P),--only "$(P)") \
	  $(if $(RESTART),--restart)

trace: $(READY) ## show one program of your kernel tile by tile: P=p06 CASE=window:2
	@"$(PY)" -m grader trace --submission "$(SUBMISSION)" $(if $(P),--only "$(P)") \
	  $(if $(CASE),--case "$(CASE)") $(if $(PROGRAM),--program "$(PROGRAM)") \
	  $(if $(SEED),--seed "$(SEED)") $(if $(JSON),--json "$(JSON)")

explain: $(READY) ## explain a cause that the report names: ID=P06-WINDOW-SHIFTED
	@"$(PY)" -m grader explain $(if $(ID),"$(ID)") $(if $(P),--only "$(P)")

lint: $(READY) ## list what the source policy refuses in your answers; runs nothing
	@"$(PY)" -m grader lint "$(SUBMISSION)" $(if $(P),--only "$(P)") || [ $$? -eq 1 ]

quiz: $(READY) ## ask you the questions of the course, one by one; never scored
	@"$(PY)" -m grader quiz $(if $(TOPIC),--topic "$(TOPIC)") $(if $(LEVEL),--level "$(LEVEL)") \
	  $(if $(RESTART),--restart)

case: $(READY) ## give you a finished kernel with one bug to find: P=p06
	@"$(PY)" -m grader case --submission "$(SUBMISSION)" $(if $(P),--only "$(P)") \
	  $(if $(CASE),--case "$(CASE)") $(if $(RESTART),--restart)

doctor: ## check this machine, and say what to type where something is wrong
	@p="$(PY)"; command -v "$$p" >/dev/null 2>&1 || p="$(PYTHON)"; \
	  $(call need,$$p,doctor); \
	  "$$p" -m grader doctor

submit: $(READY) ## pack your answers into submission.zip, to upload or hand in: TO=place
	@"$(PY)" -m grader submit --submission "$(SUBMISSION)" $(if $(OUTPUT),--output "$(OUTPUT)") \
	  $(if $(TO),--to "$(TO)") $(if $(NAME),--name "$(NAME)") || [ $$? -eq 1 ]

# course
bench: $(READY) ## time the model answers beside library kernels (needs a CUDA GPU)
	@"$(PY)" -m benchmarks $(if $(P),--problems $(P)) $(if $(SHAPES),--shapes "$(SHAPES)") \
	  $(if $(JSON),--json "$(JSON)") $(if $(PLOT),--plot "$(PLOT)") $(BENCH)

release: $(READY) ## make the students' repository: DIR=../course P=p01,p02 ANSWERS_AFTER=date
	@$(if $(DIR),,echo "make: DIR= got nothing, expected a folder such as DIR=../course" >&2; exit 2)
	@"$(PY)" -m grader release "$(DIR)" $(if $(P),--problems "$(P)") \
	  $(if $(ANSWERS_AFTER),--answers-after "$(ANSWERS_AFTER)")

test: $(READY) ## test the grader, the reference, the model answers and the set itself
	@"$(PY)" -m pytest tests -q -n $(WORKERS) --dist worksteal \
	  $(if $(filter check,$(MAKECMDGOALS)),$(CHECKED:%=--ignore=%))

check: $(READY) ## the set proves itself: stubs, answers, handouts and problem.toml agree
	@"$(PY)" -m ruff check . && "$(PY)" -m ruff format --check -q .
	@"$(PY)" -c 'from importlinter.cli import lint_imports_command as main; main()'
	@"$(PY)" -m pytest $(CHECKED) -q -n $(WORKERS) --dist worksteal
	@"$(PY)" -m tests.test_mistakes --check

sweep: $(READY) ## judge the whole corpora, under many seeds; plant faults: hours (PARTS=golden,limits)
	@"$(PY)" -c 'import mutmut' 2>/dev/null || "$(PY)" -m pip install -q "mutmut>=3.8"
	@"$(PY)" -m tests.sweep $(PARTS)
# end of course
#students: test: $(READY) ## check that this repository is whole and that the judge runs
#students: 	@"$(PY)" -m pytest tests -q

clean: ## remove .venv and caches
	rm -rf report.html $(VENV) .cache .pytest_cache .ruff_cache *.egg-info
