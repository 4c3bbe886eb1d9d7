Feature: Applying. What a plan changed is in the tree, and proven to be there; or nothing of it is

  Background:
    Given the runtime
    And a tree of files, links and empty directories

  Scenario: Applied and proven
    Given a plan that was recorded from a copy of it
    When the plan is applied
    Then the tree is what was recorded
    And the plan is applied, with 5 paths proven

  Scenario: Somebody was there first
    Given a plan that was recorded from a copy of it
    And somebody changed 2 files that the plan would change
    When the plan is applied
    Then it is a TreeConflict that names these 2 files
    And the tree is as it was found
    And the plan waits to be applied

  Scenario: A validation that fails
    Given a plan that was recorded from a copy of it, with a validation that fails
    When the plan is applied
    Then it is a ValidationFailed with the command, its exit code and its output
    And the tree is as it was found
    And the plan is constrained, with what the validation wrote
    When the plan is applied
    Then it is a ValidationFailed with the command, its exit code and its output

  Scenario: Rolled back
    Given a plan that was recorded from a copy of it
    When the plan is applied
    And the plan is rolled back
    Then the tree is as it was found
    And the plan is rolled back

  Scenario: Applied, rolled back, and applied again
    Given a plan that was recorded from a copy of it
    When the plan is applied
    And the plan is rolled back
    And the plan is applied
    Then it is a AlreadyRolledBack that says to use the action again
    And the tree is as it was found

  Scenario: Rolled back too late
    Given a plan that was recorded from a copy of it
    When the plan is applied
    And somebody changes 2 files that the plan has changed
    And the plan is rolled back
    Then it is a TreeConflict that names these 2 files
    And the tree is as it was found

  Scenario: Many who apply it at once
    Given a plan that was recorded from a copy of it
    When 8 threads apply the plan at the same moment
    Then all of them are told the same
    And the tree is what was recorded

  Scenario: Work in place
    Given a plan that was recorded from the tree itself
    When the plan is applied
    Then the tree is what was recorded
    And the plan is applied, with 5 paths proven

  Scenario: Work in copies
    Given 3 plans that are recorded in workspaces of the tree at the same time
    Then the tree is as it was found
    And each plan has its own file alone
    When the plans are applied one after the other
    Then the tree has the file of each plan
    And no workspace is left

  Scenario: Two who capture one tree
    Given a plan that is capturing the tree
    When another plan captures a directory in it
    Then it is a TreeInUse that names the first plan and its tool
