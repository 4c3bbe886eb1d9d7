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
    Then the tree is as it was found
    And the plan is constrained, with what the validation wrote

  Scenario: Rolled back
    Given a plan that was recorded from a copy of it
    When the plan is applied
    And the plan is rolled back
    Then the tree is as it was found
    And the plan is rolled back

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
