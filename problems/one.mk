# What `make` does inside a problem's folder: the same as at the top, for this problem alone.
# Names of folders (SUBMISSION=) count from the top; a file for the record (JSON=) from here.

TARGETS := help setup grade watch race hint trace explain lint quiz case doctor
.PHONY: $(TARGETS)

$(TARGETS):
	@$(MAKE) --no-print-directory -C "$(CURDIR)/../.." $@ \
	  $(if $(P)$(p),,P=$(notdir $(CURDIR))) \
	  $(if $(JSON),JSON="$(if $(filter /%,$(JSON)),,$(CURDIR)/)$(JSON)")
