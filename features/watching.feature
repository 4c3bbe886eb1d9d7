Feature: Watching. Whoever watches is told what was committed, in order, without a gap and once

  Background:
    Given the runtime with a hot budget of 100 tokens

  Scenario: Everything that many do at once is told in one order
    Given a watcher
    When 8 threads each store 25 fragments of 10 tokens that are watched
    Then the watcher is told of 200 stores, each with the revision that its caller got
    And what it was told leads to where every fragment is

  Scenario: A transaction is told as one
    Given a watcher
    When 5 fragments are stored in one transaction
    Then the watcher is told of 5 stores at one revision

  Scenario: It goes on where it was
    Given a watcher
    When 10 fragments are stored, and it leaves after the first 4 of them
    Then a new watcher from its revision on is told of the other 6

  Scenario: A connection that breaks is no gap
    Given a watcher
    When its connection breaks while 10 fragments are stored
    Then the watcher is told of 10 stores

  Scenario: Another project is none of its business
    Given a watcher of the project ours
    When a fragment is stored in theirs, and one in ours
    Then the watcher is told of the one in ours alone

  Scenario: Whoever comes too late is told so
    When more happens than is remembered
    Then a watcher from the beginning is told that it missed some, and then of all that followed

  Scenario: It ends when it is told to
    Given a watcher
    And a thread that waits for what happens
    When another thread closes the watcher
    Then the waiting thread comes to its end
