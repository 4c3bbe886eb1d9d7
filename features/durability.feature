Feature: Durability. With a data directory, what was acknowledged survives, and happens once

  Background:
    Given a runtime with a data directory

  Scenario: The manager is killed, and everything is there
    Given 50 fragments, a plan that somebody works on, and a change recorded for it
    When the manager is killed with kill -9
    Then the same client finds the fragments, each in its tier
    And the lease still counts, and the change is recorded once
    And the revisions go on where they were

  Scenario: A call during which the manager dies is answered
    Given 8 threads that store one fragment after the other
    When the manager is killed with kill -9 while they do
    Then no call has failed
    And every fragment was stored exactly once, in the order of its thread

  Scenario: Another runtime on the same directory goes on
    Given 50 fragments, a plan that somebody works on, and a change recorded for it
    When the runtime is closed and another one started on its directory
    Then a new client finds the fragments, each in its tier

  Scenario: One manager has a directory at a time
    When another runtime is started on the same directory
    Then it is refused, and told which process has it

  Scenario: Without a data directory nothing is restarted
    Given a runtime without a data directory
    When its manager is killed with kill -9
    Then its callers are told that it is gone
